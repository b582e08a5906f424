// The changes of a chaos run: services that come, go and change their endpoints, and hostile ones that want what belongs to others.

import fc from 'fast-check'
import { clusterIp, nodeIp, podIps } from '../kernel/node-network.ts'
import { expand } from '../kernel/web-service.ts'
import type { Item, WatchedApi } from '../lab/watched-api.ts'
import { buildObject, hostileObjects, type Json } from './hostile-objects.ts'
import type { Random } from './random.ts'

const services = 100
/** A service beyond a limit keeps what it had, and a restart would not program that: such objects are left out. */
const longestList = 500

function longestIn(value: Json): number {
  if (typeof value !== 'object' || value === null) return 0
  const own = Array.isArray(value) ? value.length : 0
  return Object.values(value as Record<string, Json>).reduce<number>((most, one) => Math.max(most, longestIn(one)), own)
}

/** Hostile services and slices that an API server could store under a name. */
function sampleHostile(seed: number, count: number, ports: readonly number[]): readonly Item[] {
  const targets = { clusterIps: [clusterIp], podIps, reservedIps: [nodeIp, '127.0.0.1'], ports }
  return fc
    .sample(hostileObjects(targets), { seed, numRuns: count })
    .map(buildObject)
    .filter(({ resource, object }) => /services|endpointslices/.test(resource) && longestIn(object) <= longestList)
    .map(({ object }) => object as unknown as Item)
    .filter((item) => typeof item?.metadata?.name === 'string' && typeof item.kind === 'string')
}

const asItem = (object: unknown): Item => object as Item

export class ChaosChanges {
  made = 0
  readonly #api: WatchedApi
  readonly #random: Random
  readonly #hostile: readonly Item[]

  constructor(api: WatchedApi, random: Random, seed: number) {
    this.#api = api
    this.#random = random
    this.#hostile = sampleHostile(seed, 3000, [80, 8080, 8001, 10_249])
  }

  makeOne(): void {
    this.made++
    const random = this.#random
    if (random.chance(0.15)) {
      const item = random.choose(this.#hostile)
      if (random.chance(0.5)) this.#api.put(item)
      else this.#api.drop(item)
      return
    }
    const i = random.between(0, services)
    const name = `churn/svc-${i}`
    const service = asItem(expand({ service: name, clusterIP: `172.30.50.${i}`, ports: ['http 80/tcp'] }, 2 * i))
    const endpoints = podIps.filter(() => random.chance(0.6)).map((ip) => `${ip} local`)
    const slice = asItem(expand({ slice: name, ports: ['http 8080/tcp'], endpoints }, 2 * i + 1))
    if (random.chance(0.2)) this.#api.drop(random.choose([service, slice]))
    else this.#api.put(service, slice)
  }

  /** Adds a service that shows, once it answers, that everything before it is programmed. */
  makeLast(ip: string): void {
    this.#api.put(
      asItem(expand({ service: 'churn/last', clusterIP: ip, ports: ['http 80/tcp'] }, 900)),
      asItem(expand({ slice: 'churn/last', ports: ['http 8080/tcp'], endpoints: [`${podIps[0]} local`] }, 901)),
    )
  }
}
