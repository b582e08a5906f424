// Flows that are read from relays: what a session lists and passes on, how it samples, and where clients wanted to go.

import { afterEach, describe, expect, it } from 'vitest'
import type { RelayedFlow, RelayedFlowListener, RelayedFlows } from '../../../src/backend/relayed-flows.ts'
import type { FlowSources, RefusalListener } from '../../../src/daemon/traffic/flow-session.ts'
import { readRelayFlows } from '../../../src/daemon/traffic/relay-session.ts'
import type { LoggedFlow } from '../../../src/engine/flows/flow-log.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { servicePort } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const closers: (() => void)[] = []
afterEach(() => {
  for (const close of closers.splice(0)) close()
})

const flow = (id: number, clientPort: number, more: Partial<RelayedFlow> = {}): RelayedFlow => ({
  ...{ id, family: 4, protocol: 'tcp', port: 'ns/web:http', client: '10.1.0.1', clientPort },
  ...{ local: '10.0.0.2', localPort: 40_000, endpoint: '10.180.0.1:8080', verdict: 'open', why: '' },
  ...{ startedAt: 1_000, endedAt: undefined, ...more },
  traffic: { bytesIn: 0, bytesOut: 0, packetsIn: 0, packetsOut: 0 },
})

function open({ findPlaces }: Pick<RelayedFlows, 'findPlaces'> = {}) {
  const held = new Map<number, RelayedFlow>()
  let listener: RelayedFlowListener | undefined
  const relays: RelayedFlows = {
    remarks: ['A remark.'],
    list: () => held.values(),
    follow(given) {
      listener = given
      return () => {
        listener = undefined
      }
    },
    ...(findPlaces && { findPlaces }),
  }
  const clock = new FakeClock()
  const refusals: RefusalListener[] = []
  let closedRefusals = 0
  const port = servicePort({ service: 'ns/web', portName: 'http', frontends: [frontend] })
  const sources: FlowSources = {
    ...{ ports: () => [port], portsOf: () => [port], families: [4], nodeAddresses: () => [], clock, log: silentLogger },
    journal: { subscribe: () => () => {} },
    openRefusals: async (given) => {
      refusals.push(given)
      return { close: () => void closedRefusals++ }
    },
  }
  const reading = readRelayFlows(sources, relays)
  return {
    ...{ reading, clock, refusals, held },
    closedRefusals: () => closedRefusals,
    isFollowed: () => listener !== undefined,
    /** As relays report it: only what is selected is described. */
    begin: (one: RelayedFlow) => {
      held.set(one.id, one)
      if (listener?.selects(one.clientPort)) listener.note(one)
    },
    end: (one: RelayedFlow, more: Partial<RelayedFlow> = {}) => {
      held.delete(one.id)
      if (listener?.selects(one.clientPort)) listener.note({ ...one, verdict: 'closed', endedAt: 2_000, ...more })
    },
    follow() {
      const flows: LoggedFlow[] = []
      const counts = { coverage: 0, lost: 0 }
      const session = reading.open({
        flow: (one) => flows.push(one),
        coverageChanged: () => void counts.coverage++,
        lost: () => void counts.lost++,
      })
      closers.push(() => session.close())
      return { session, flows, counts }
    },
  }
}

const frontend = { kind: 'cluster-ip', ip: '10.96.0.1', port: 80, allow: [] } as const

const verdicts = (flows: readonly LoggedFlow[]) => flows.map(({ id, verdict }) => `${id} ${verdict}`)

describe('flows of relays', () => {
  it('are listed without listening to anything', async () => {
    const relays = open()
    relays.begin(flow(1, 50_000))
    const { flows } = await relays.reading.list(new AbortController().signal)
    expect(flows).toMatchObject([
      { id: 'relay-1', port: { service: 'ns/web', name: 'ns/web:http' }, source: '10.1.0.1', sourcePort: 50_000 },
    ])
    expect(relays.isFollowed()).toBe(false)
    expect(relays.reading.remarks()).toEqual(['A remark.'])
  })

  it('are followed until the session is closed; those that ended are kept that long', () => {
    const relays = open()
    relays.begin(flow(1, 50_000))
    const { session, flows } = relays.follow()
    expect(verdicts(session.list())).toEqual(['relay-1 open'])
    relays.begin(flow(2, 50_002))
    relays.end(flow(1, 50_000))
    expect(verdicts(flows)).toEqual(['relay-2 open', 'relay-1 closed'])
    expect(verdicts(session.list())).toEqual(['relay-2 open', 'relay-1 closed'])
    session.close()
    expect(relays.isFollowed()).toBe(false)
    relays.end(flow(2, 50_002))
    expect(flows).toHaveLength(2)
  })

  it('are sampled in a flood, and all are shown again when it is over', async () => {
    const relays = open()
    const { session, flows, counts } = relays.follow()
    for (let i = 0; i < 600; i++) relays.begin(flow(i + 1, 10_000 + 2 * i))
    // After 251 flows every second one is followed, and after 251 of these every fourth would be.
    expect(session.sampled).toBe(2)
    expect(counts.coverage).toBe(1)
    expect(flows.length).toBe(251 + 174)
    // What is not in the share begins and ends unseen.
    relays.end(flow(600, 10_000 + 2 * 599))
    expect(flows.length).toBe(251 + 174)
    await relays.clock.advance(5_000)
    expect(session.sampled).toBe(1)
    expect(counts.coverage).toBe(2)
    expect(new Set(flows.map(({ id }) => id)).size).toBe(599)
    expect(session.skipped).toBe(0)
  })

  it('have packets beside them that rules refuse', async () => {
    const relays = open()
    const { session, flows, counts } = relays.follow()
    await new Promise((resolve) => setImmediate(resolve))
    const [refusals] = relays.refusals
    const packet = { family: 4, protocol: 'tcp', source: '10.1.0.1', sourcePort: 50_000 } as const
    refusals?.refused({ ...packet, destination: '10.96.0.1', destinationPort: 80, verdict: 'rejected', rule: 'a rule' })
    expect(flows).toMatchObject([{ verdict: 'rejected', rule: 'a rule', port: { name: 'ns/web:http' } }])
    refusals?.lost()
    expect([session.lost, counts.lost]).toEqual([1, 1])
    session.close()
    expect(relays.closedRefusals()).toBe(1)
  })

  it('get the places that the clients asked for, where they are known, and where rules redirect', async () => {
    const asked: number[] = []
    const relays = open({
      async findPlaces(flows) {
        asked.push(...flows.map(({ id, clientPort }) => id + clientPort))
        return flows.map(({ id }) => (id === 1 ? { ip: '10.96.0.1', port: 80 } : undefined))
      },
    })
    relays.begin(flow(1, 50_000))
    relays.begin(flow(36, 50_002))
    const { flows } = await relays.reading.list(new AbortController().signal)
    const located = (await relays.reading.locate?.(flows)) ?? []
    const places = located.map(({ destination, destinationPort }) => `${destination}:${destinationPort}`)
    expect(places).toEqual(['10.96.0.1:80', '10.0.0.2:40000'])
    expect(asked).toEqual([50_001, 50_038])
    expect(await open().reading.locate?.(flows)).toEqual(flows)
  })
})
