// Sets the conditions and finalizers of ServiceCIDRs: a range is ready at once, and stays while a service has an address of it that no
// other range contains.

import { deepEqual } from '../../lib/equal.ts'
import { contains } from '../../lib/ip.ts'
import type { Clock } from '../../lib/time.ts'
import { type Allocations, parseCidrs } from '../requests/allocations.ts'
import { formatNow } from '../requests/generate-name.ts'
import { getObject, getObjects, type Json } from '../schema/json.ts'
import { finalizersOf, isTerminating, metadataOf, nameOf } from '../schema/object-metadata.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import type { DeferredController } from './work-scheduler.ts'

const finalizer = 'networking.k8s.io/service-cidr-finalizer'
const readyCondition = { status: 'True', reason: '', message: 'Kubernetes Service CIDR is ready' }
const terminatingCondition = {
  status: 'False',
  reason: 'Terminating',
  message: 'There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR',
}

export class ServiceCidrController implements DeferredController {
  readonly #registry: Registry
  readonly #allocations: Allocations
  readonly #clock: Clock
  #hasWork = false

  constructor(registry: Registry, allocations: Allocations, clock: Clock) {
    this.#registry = registry
    this.#allocations = allocations
    this.#clock = clock
  }

  get hasWork(): boolean {
    return this.#hasWork
  }

  observe({ resource, previous }: Change): void {
    if (resource === 'servicecidrs' || (resource === 'services' && previous !== undefined)) this.#hasWork = true
  }

  run(): void {
    if (!this.#hasWork) return
    this.#hasWork = false
    for (const { object } of [...this.#registry.list('servicecidrs')]) {
      if (isTerminating(object) && !this.#isNeeded(object)) this.#release(object)
      else this.#update(object)
    }
  }

  /** Removes our finalizer, and the object if it has no other. */
  #release(object: Json): void {
    const finalizers = finalizersOf(object).filter((each) => each !== finalizer)
    if (finalizers.length === 0) this.#registry.remove('servicecidrs', '', nameOf(object))
    else if (finalizers.length !== finalizersOf(object).length)
      this.#registry.put('servicecidrs', { ...object, metadata: { ...metadataOf(object), finalizers } })
  }

  #update(object: Json): void {
    const needsFinalizer = !isTerminating(object) && !finalizersOf(object).includes(finalizer)
    const updated = {
      ...object,
      metadata: {
        ...metadataOf(object),
        ...(needsFinalizer ? { finalizers: [...finalizersOf(object), finalizer] } : {}),
      },
      status: { ...getObject(object, 'status'), conditions: this.#conditions(object) },
    }
    if (!deepEqual(updated, object)) this.#registry.put('servicecidrs', updated)
  }

  #conditions(object: Json): readonly Json[] {
    const conditions = getObjects(getObject(object, 'status'), 'conditions')
    const old = conditions.find((condition) => condition.type === 'Ready')
    const wanted = isTerminating(object) ? terminatingCondition : readyCondition
    if (old?.status === wanted.status) return conditions
    const ready = { type: 'Ready', ...wanted, lastTransitionTime: formatNow(this.#clock) }
    return [...conditions.filter((condition) => condition !== old), ready]
  }

  #isNeeded(object: Json): boolean {
    const own = parseCidrs(object)
    const others = this.#allocations.cidrs()
    for (const ip of this.#allocations.ips()) {
      if (own.some((cidr) => contains(cidr, ip)) && !others.some((cidr) => contains(cidr, ip))) return true
    }
    return false
  }
}
