// Fuzzes the way from an API server to the store: whatever the server sends, and however, the reflectors live, requests stay few, and
// when the server behaves again, the state is that of a fresh start.

import { describe, expect, it } from 'vitest'
import { Reflector } from '../../src/kube/reflect/reflector.ts'
import { endpointSlices, services, type WatchedResource } from '../../src/kube/reflect/watched-resources.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { clientTo, connectionTo } from '../kube/script-server.ts'
import { type FastClock, fastClock } from '../support/fast-clock.ts'
import { until } from '../support/until.ts'
import { BadServer } from './bad-server.ts'
import { Random } from './random.ts'

const rounds = Number(process.env.HOSTILE_TRANSPORTS ?? 25)
const seed = Number(process.env.HOSTILE_SEED ?? 1)
/** How much faster than real time the reflectors live: their longest wait is half a minute. */
const factor = 200

/** Reflects both kinds to plain maps. */
class Reflection {
  readonly state = new Map<string, string>()
  readonly thrown: unknown[] = []
  synced = 0
  readonly clock: FastClock = fastClock(factor)
  readonly #controller = new AbortController()
  readonly #client: ReturnType<typeof clientTo>
  readonly #running: Promise<void>[]

  constructor(url: string) {
    this.#client = clientTo(connectionTo(url), this.clock)
    this.#running = [this.#reflect(services), this.#reflect(endpointSlices)]
  }

  async stop(): Promise<void> {
    this.#controller.abort(new Error('the round is over'))
    await Promise.all(this.#running)
    this.#client.close()
  }

  text(): string {
    return JSON.stringify([...this.state].sort())
  }

  async #reflect<R>(resource: WatchedResource<R>): Promise<void> {
    const { kind } = resource
    const sink = {
      put: (key: string, record: R) => void this.state.set(`${kind} ${key}`, JSON.stringify(record)),
      drop: (key: string) => void this.state.delete(`${kind} ${key}`),
      synced: () => void this.synced++,
      problem: () => {},
    }
    const reflector = new Reflector({ ...resource, client: this.#client, sink, clock: this.clock, log: silentLogger })
    await reflector.run(this.#controller.signal).catch((error) => {
      if (!this.#controller.signal.aborted) this.thrown.push(error)
    })
  }
}

const nameOf = (random: Random): string => `svc-${random.between(0, 12)}`

function changeSomething(server: BadServer, random: Random): void {
  const name = nameOf(random)
  const number = random.between(1, 250)
  const isDeleted = random.chance(0.3)
  if (random.chance(0.5)) {
    const spec = { clusterIP: `10.0.0.${number}`, clusterIPs: [`10.0.0.${number}`], ports: [{ port: 80 }] }
    if (isDeleted) server.drop(services.resource, name)
    else server.put(services.resource, name, { kind: 'Service', spec: { ...spec, note: 'é'.repeat(number) } })
    return
  }
  if (isDeleted) server.drop(endpointSlices.resource, name)
  else
    server.put(endpointSlices.resource, name, {
      kind: 'EndpointSlice',
      metadata: { labels: { 'kubernetes.io/service-name': name } },
      addressType: 'IPv4',
      ports: [{ name: '', port: 80 }],
      endpoints: [{ addresses: [`10.1.0.${number}`], conditions: { ready: true } }],
    })
}

async function readFresh(url: string): Promise<string> {
  const fresh = new Reflection(url)
  await until('a fresh start has synced', () => fresh.synced >= 2)
  const text = fresh.text()
  await fresh.stop()
  return text
}

async function playRound(random: Random): Promise<void> {
  const server = new BadServer(random)
  const url = await server.start()
  for (let i = 0; i < 20; i++) changeSomething(server, random)
  const reflection = new Reflection(url)
  const begin = reflection.clock.monotonic()
  for (let i = random.between(3, 12); i > 0; i--) {
    changeSomething(server, random)
    await new Promise((resolve) => setTimeout(resolve, random.between(1, 60)))
  }
  const seconds = (reflection.clock.monotonic() - begin) / 1000
  const { requests } = server
  server.behave()
  try {
    const fresh = await readFresh(url)
    await until('the state is that of a fresh start', () => reflection.text() === fresh, { limitMs: 60_000 })
    expect(reflection.thrown).toEqual([])
    // Both reflectors wait longer and longer between failures. Pages of one list follow each other without a wait.
    expect(requests).toBeLessThan(100 + 4 * seconds)
  } finally {
    await reflection.stop()
    await server.stop()
  }
}

describe('transports', () => {
  it(`${rounds} bad API servers, seed ${seed}: the state ends as that of a fresh start`, {
    timeout: 60_000 + rounds * 10_000,
  }, async () => {
    for (let round = 0; round < rounds; round++) {
      await playRound(new Random(seed * 100_000 + round)).catch((cause) => {
        throw new Error(`round ${round} of seed ${seed}: ${cause}`, { cause })
      })
    }
  })
})
