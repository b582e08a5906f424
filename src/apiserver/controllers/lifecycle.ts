// What ends by itself: pods after their grace, namespaces with all in them, dependents of what is gone, old events, unused ranges.

import { contains, parseCidr } from '../../lib/ip.ts'
import { type Clock, formatTime, type Timer } from '../../lib/time.ts'
import { finalizersOf, terminating } from '../requests/admission.ts'
import type { ObjectWriter } from '../requests/writes.ts'
import { child, equal, type Json, type MutableJson, objects, text, texts } from '../schema/json.ts'
import { metaOf, named, nameOf, namespaceOf, resources } from '../schema/served-resources.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import type { Allocations } from './allocate.ts'

const eventLifeMs = 60 * 60_000
const sweepMs = 60_000
export const cidrFinalizer = 'networking.k8s.io/service-cidr-finalizer'
/** Stored once, so looked at once. */
const namespaced = [...new Set(resources.filter((each) => each.namespaced).map(({ plural }) => plural))]

export class Lifecycle {
  readonly #registry: Registry
  readonly #writer: ObjectWriter
  readonly #allocations: Allocations
  readonly #clock: Clock
  readonly #timers = new Map<string, Timer>()
  /** By the owner's uid: `resource namespace name`. */
  readonly #dependents = new Map<string, Set<string>>()
  readonly #living = new Set<string>()
  readonly #orphaned = new Set<string>()
  readonly #emptying = new Set<string>()
  #cidrsChanged = false
  #sweep: Timer | undefined
  #scheduled = false
  #closed = false

  constructor(options: { registry: Registry; writer: ObjectWriter; allocations: Allocations; clock: Clock }) {
    this.#registry = options.registry
    this.#writer = options.writer
    this.#allocations = options.allocations
    this.#clock = options.clock
    this.#registry.index((change) => this.#observe(change))
    this.#sweepLater()
  }

  close(): void {
    this.#closed = true
    this.#sweep?.cancel()
    for (const timer of this.#timers.values()) timer.cancel()
  }

  #observe(change: Change): void {
    const { resource, namespace, name, previous, next } = change
    this.#trackOwners(change)
    if (resource === 'pods') this.#awaitEnd(namespace, name, next?.object)
    if (resource === 'namespaces' && next !== undefined && terminating(next.object)) this.#emptying.add(name)
    if (next === undefined && namespace !== '') {
      const home = this.#registry.find('namespaces', '', namespace)
      if (home !== undefined && terminating(home.object)) this.#emptying.add(namespace)
    }
    if (resource === 'servicecidrs' || (resource === 'services' && previous !== undefined)) this.#cidrsChanged = true
    if (this.#orphaned.size > 0 || this.#emptying.size > 0 || this.#cidrsChanged) this.#schedule()
  }

  #trackOwners({ resource, namespace, name, previous, next }: Change): void {
    const id = `${resource} ${namespace} ${name}`
    for (const uid of owners(previous?.object)) this.#dependents.get(uid)?.delete(id)
    for (const uid of owners(next?.object)) {
      const set = this.#dependents.get(uid) ?? new Set()
      this.#dependents.set(uid, set.add(id))
    }
    const was = text(metaOf(previous?.object ?? {}), 'uid')
    const is = text(metaOf(next?.object ?? {}), 'uid')
    if (is !== '') this.#living.add(is)
    if (was === '' || was === is) return
    this.#living.delete(was)
    for (const each of this.#dependents.get(was) ?? []) this.#orphaned.add(each)
    this.#dependents.delete(was)
  }

  #awaitEnd(namespace: string, name: string, pod: Json | undefined): void {
    const key = `${namespace}/${name}`
    this.#timers.get(key)?.cancel()
    this.#timers.delete(key)
    if (pod === undefined || !terminating(pod)) return
    const left = Math.max(0, Date.parse(text(metaOf(pod), 'deletionTimestamp')) - this.#clock.now())
    const end = () => {
      this.#timers.delete(key)
      const now = this.#registry.find('pods', namespace, name)?.object
      // With a finalizer it stays until that is taken away.
      if (now === undefined || !terminating(now) || this.#closed) return
      if (finalizersOf(now).length === 0) this.#registry.remove('pods', namespace, name)
      else this.#registry.put('pods', { ...now, metadata: { ...metaOf(now), deletionGracePeriodSeconds: 0 } })
    }
    if (left === 0 && finalizersOf(pod).length > 0) return
    this.#timers.set(key, this.#clock.after(left, end))
  }

  #schedule(): void {
    if (this.#scheduled || this.#closed) return
    this.#scheduled = true
    if (this.#registry.failing)
      this.#timers.set(
        '',
        this.#clock.after(1_000, () => this.#work()),
      )
    else setImmediate(() => this.#work())
  }

  #work(): void {
    this.#scheduled = false
    if (this.#closed) return
    this.#removeOrphans()
    this.#emptyNamespaces()
    if (this.#cidrsChanged) this.#settleCidrs()
  }

  #removeOrphans(): void {
    for (const id of this.#orphaned) {
      this.#orphaned.delete(id)
      const [plural = '', namespace = '', name = ''] = id.split(' ')
      const object = this.#registry.find(plural, namespace, name)?.object
      if (object === undefined || owners(object).some((uid) => this.#living.has(uid))) continue
      if (named(plural).readOnly) this.#registry.remove(plural, namespace, name)
      else this.#writer.remove({ resource: named(plural), namespace, name, subresource: '' }, { dryRun: false })
    }
  }

  #emptyNamespaces(): void {
    for (const namespace of this.#emptying) {
      this.#emptying.delete(namespace)
      let left = 0
      for (const plural of namespaced) {
        for (const { object } of [...this.#registry.list(plural, namespace)]) {
          if (named(plural).readOnly) this.#registry.remove(plural, namespace, nameOf(object))
          else if (terminating(object)) left++
          else {
            const place = { resource: named(plural), namespace, name: nameOf(object), subresource: '' } as const
            if (!this.#writer.remove(place, { dryRun: false }).gone) left++
          }
        }
      }
      const own = this.#registry.find('namespaces', '', namespace)?.object
      if (left === 0 && own !== undefined && terminating(own) && finalizersOf(own).length === 0) {
        this.#registry.remove('namespaces', '', namespace)
      }
    }
  }

  /** A range is ready at once, and stays for as long as a service has an address that no other range holds. */
  #settleCidrs(): void {
    this.#cidrsChanged = false
    for (const { object } of [...this.#registry.list('servicecidrs')]) {
      const leaving = terminating(object)
      if (leaving && !this.#isNeeded(object)) {
        const rest = finalizersOf(object).filter((each) => each !== cidrFinalizer)
        if (rest.length === 0) this.#registry.remove('servicecidrs', '', nameOf(object))
        else if (rest.length !== finalizersOf(object).length)
          this.#registry.put('servicecidrs', { ...object, metadata: { ...metaOf(object), finalizers: rest } })
        continue
      }
      const metadata: MutableJson = { ...metaOf(object) }
      if (!leaving && !finalizersOf(object).includes(cidrFinalizer))
        metadata.finalizers = [...finalizersOf(object), cidrFinalizer]
      const conditions = this.#cidrConditions(object, leaving)
      const next = { ...object, metadata, status: { ...child(object, 'status'), conditions } }
      if (!equal(next, object)) this.#registry.put('servicecidrs', next)
    }
  }

  #cidrConditions(object: Json, leaving: boolean): readonly Json[] {
    const held = objects(child(object, 'status'), 'conditions')
    const wanted = leaving
      ? {
          status: 'False',
          reason: 'Terminating',
          message:
            'There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR',
        }
      : { status: 'True', reason: '', message: 'Kubernetes Service CIDR is ready' }
    const old = held.find((condition) => condition.type === 'Ready')
    if (old?.status === wanted.status) return held
    const ready = {
      type: 'Ready',
      ...wanted,
      lastTransitionTime: formatTime(Math.floor(this.#clock.now() / 1000) * 1000),
    }
    return [...held.filter((condition) => condition !== old), ready]
  }

  #isNeeded(object: Json): boolean {
    const own = texts(child(object, 'spec'), 'cidrs').flatMap((cidr) => parseCidr(cidr) ?? [])
    const others = this.#allocations.cidrs()
    for (const ip of this.#allocations.ips()) {
      if (own.some((cidr) => contains(cidr, ip)) && !others.some((cidr) => contains(cidr, ip))) return true
    }
    return false
  }

  #sweepLater(): void {
    this.#sweep = this.#clock.after(sweepMs, () => {
      if (this.#closed) return
      const oldest = this.#clock.now() - eventLifeMs
      for (const { object } of [...this.#registry.list('events')]) {
        if (lastSeen(object) < oldest) this.#registry.remove('events', namespaceOf(object), nameOf(object))
      }
      this.#sweepLater()
    })
  }
}

const owners = (object: Json | undefined): readonly string[] =>
  objects(metaOf(object ?? {}), 'ownerReferences').map((owner) => text(owner, 'uid'))

function lastSeen(event: Json): number {
  const times = [
    text(child(event, 'series'), 'lastObservedTime'),
    text(event, 'lastTimestamp'),
    text(event, 'eventTime'),
    text(metaOf(event), 'creationTimestamp'),
  ]
  return Math.max(...times.map((time) => Date.parse(time) || 0))
}
