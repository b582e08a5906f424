// The words of explain and status for ejected endpoints and for a saved state that serves.

import { describe, expect, it } from 'vitest'
import { nftablesBehaviour } from '../../src/backend/nftables/traits/behaviour.ts'
import type { StatusAnswer } from '../../src/commands/answers/status-answer.ts'
import { formatStatus } from '../../src/commands/answers/status-text.ts'
import type { SavedStateSummary } from '../../src/http/admin.ts'
import { explainEndpoints } from '../../src/inspect/endpoint-reasons.ts'
import { trace } from '../../src/model/trace.ts'
import type { CapacityWeights } from '../../src/model/types.ts'
import * as live from '../commands/top/live-builders.ts'
import { slice, view } from '../engine/engine-harness.ts'
import { endpoint, service, servicePort, slice as sliceOf, view as viewOf } from '../support/builders.ts'
import { resolve } from '../support/resolve.ts'

const terminal = { paint: (_: string, text: string) => text, width: 200 } as unknown as Parameters<
  typeof formatStatus
>[3]
const now = Date.parse('2026-11-16T12:00:00Z')

function statusOf(savedState: SavedStateSummary | null, ejected: readonly string[]): string {
  const { node, mode, families: _, ...proxy } = live.summary(1, { savedState })
  const service = live.service('ns/web', [live.port('ns/web', ['10.1.0.1:80'], { ejected })])
  const answer = { node, mode, proxy, families: [], services: [service] } as unknown as StatusAnswer
  return formatStatus(answer, now, false, terminal)
}

it('explain says of an ejected endpoint why it gets no connections', () => {
  const [used, out] = ['10.1.0.1', '10.1.0.2'].map((ip) => ({ ip, port: 8080, local: false }))
  const why = '3 connections in a row failed, the last was refused'
  const port = servicePort({
    service: 'ns/web',
    portName: 'http',
    protocol: 'tcp',
    cluster: used === undefined ? [] : [used],
    ejected: [{ address: `${out?.ip}:8080`, why }],
  })
  const context = {
    desired: { store: { service: () => undefined, slicesOf: () => [slice('ns/web', ['10.1.0.1', '10.1.0.2'])] } },
  } as unknown as Parameters<typeof explainEndpoints>[0]
  const outcome = {
    verdict: 'forward',
    port,
    endpoints: [{ address: '10.1.0.1:8080', snat: false }],
  } as unknown as Parameters<typeof explainEndpoints>[2]
  const words = explainEndpoints(context, view(4), outcome).endpoints.map(({ address, probability, why: word }) => [
    address,
    probability,
    word,
  ])
  expect(words).toEqual([
    ['10.1.0.1:8080', 1, expect.stringContaining('ready')],
    ['10.1.0.2:8080', 0, `ejected for a while: ${why}`],
  ])
})

it('status names ejected endpoints', () => {
  expect(statusOf(null, ['10.1.0.2:80: 3 connections in a row failed'])).toContain('ejected 10.1.0.2:80: 3 connections')
  expect(statusOf(null, [])).not.toContain('ejected')
})

it('status says when the saved state serves, when it was written, and why it is not used', () => {
  const summary = (given: Partial<SavedStateSummary>): SavedStateSummary => ({
    path: '/state',
    inUse: false,
    savedAt: '2026-11-16T11:59:00Z',
    problem: '',
    ...given,
  })
  expect(statusOf(summary({ inUse: true }), [])).toContain(
    'Serves the state saved 60s ago: the API server has not sent its own yet',
  )
  expect(statusOf(summary({}), [])).toContain('Saved state: written 60s ago')
  expect(statusOf(summary({ problem: 'it is damaged' }), [])).toContain('Saved state: it is damaged')
  expect(statusOf(null, [])).not.toContain('aved state')
})

describe('weights and algorithms', () => {
  const make = (
    weights: Readonly<Record<string, number>>,
    algorithm?: 'consistent-hash',
    capacityWeights?: CapacityWeights,
  ) => {
    const record = service({ weights, ...(algorithm === undefined ? {} : { algorithm }) })
    const nodes = ['node-a', 'node-b', 'node-c']
    const slices = [sliceOf(nodes.map((name, i) => endpoint(`10.1.0.${i + 1}`, name)))]
    const node = viewOf()
    // The store holds the record as the API has it; capacity is added before it is resolved.
    const ports = resolve(capacityWeights === undefined ? record : { ...record, capacityWeights }, slices, node)
    const packet = { from: '10.0.0.9', to: '172.30.0.41', port: 80, protocol: 'tcp', origin: 'pod' } as const
    const outcome = trace({ ports, node, nodeAddresses: [] }, packet, nftablesBehaviour)
    const context = { desired: { store: { service: () => record, slicesOf: () => slices } } } as unknown as Parameters<
      typeof explainEndpoints
    >[0]
    const { endpoints } = explainEndpoints(context, node, outcome as Parameters<typeof explainEndpoints>[2])
    return { steps: outcome.steps, endpoints: endpoints.map(({ probability, why }) => [probability, why]) }
  }

  it('explain shows shares by weight, and why weight 0 gets nothing', () => {
    expect(make({ '10.1.0.1': 3, '10.1.0.3': 0 }).endpoints).toEqual([
      [0.75, 'ready, weight 3'],
      [0.25, 'ready'],
      [0, 'weight 0: gets no new connections'],
    ])
  })

  it('explain says which weights come from the capacity of nodes', () => {
    const capacityWeights = { byNode: new Map([['node-a', 6]]), others: 6 }
    expect(make({ 'node-c': 0 }, undefined, capacityWeights).endpoints).toEqual([
      [0.5, 'ready, weight 6 by the capacity of its node'],
      [0.5, 'ready, weight 6 as the smallest node has, since the capacity of its own is not known'],
      [0, 'weight 0: gets no new connections'],
    ])
  })

  it('explain names the endpoint of a client under consistent hashing', () => {
    const { steps, endpoints } = make({}, 'consistent-hash')
    expect(steps.at(-1)).toMatch(/^Consistent hashing chooses 10\.1\.0\.\d:80: 10\.0\.0\.9 has slot \d+ of 1024\.$/)
    expect(endpoints.filter(([share]) => share === 1)).toHaveLength(1)
    expect(endpoints.filter(([, why]) => String(why).includes('chooses another endpoint'))).toHaveLength(2)
  })

  it('status shows weights, starts and the algorithm', () => {
    const port = live.port('ns/web', ['10.1.0.1:80'], {
      endpoints: [{ address: '10.1.0.1:80', local: true, weight: 3, startingPercent: 40 }],
      algorithm: 'round-robin',
    })
    const { node, mode, families: _, ...proxy } = live.summary(1, { savedState: null })
    const answer = { node, mode, proxy, families: [], services: [live.service('ns/web', [port])] }
    const text = formatStatus(answer as unknown as StatusAnswer, now, true, terminal)
    expect(text).toContain('10.1.0.1:80 (this node, weight 3, starting, 40 %)')
    expect(text).toContain(', round-robin')
  })

  it('status says which weights come from the capacity of nodes', () => {
    const endpoints = [
      { address: '10.1.0.1:80', local: true, weight: 6, weightFrom: 'node-capacity' },
      { address: '10.1.0.2:80', local: false, weightFrom: 'smallest-node' },
    ] as const
    const port = live.port('ns/web', [], { endpoints })
    const { node, mode, families: _, ...proxy } = live.summary(1, { savedState: null })
    const answer = { node, mode, proxy, families: [], services: [live.service('ns/web', [port])] }
    const text = formatStatus(answer as unknown as StatusAnswer, now, true, terminal)
    expect(text).toContain('10.1.0.1:80 (this node, weight 6 by node capacity)')
    expect(text).toContain('10.1.0.2:80 (weight 1 as the smallest node)')
  })
})
