import { describe, expect, it } from 'vitest'
import { NodeViews, ServiceCidrs } from '../../../src/daemon/node/node-views.ts'
import { NodeWatch } from '../../../src/daemon/node/node-watch.ts'
import type { ProxyError } from '../../../src/lib/errors.ts'
import type { Family } from '../../../src/lib/ip.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import type { NodeFacts } from '../../../src/model/node.ts'
import type { NodeRecord, NodeView } from '../../../src/model/types.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const record = (change: Partial<NodeRecord> = {}): NodeRecord => ({
  name: 'n',
  addresses: ['192.0.2.1'],
  podCidrs: ['10.0.0.0/24'],
  zone: 'a',
  deleting: false,
  taints: [],
  ...change,
})

function watch(needsPodCidrs = false) {
  const clock = new FakeClock()
  const fatal: ProxyError[] = []
  const errors: string[] = []
  const node = new NodeWatch({
    name: 'n',
    needsPodCidrs,
    clock,
    log: { ...silentLogger, error: (message) => void errors.push(message) },
    onProblem: () => undefined,
    onFatal: (error) => void fatal.push(error),
  })
  const never = new AbortController().signal
  return { node, clock, fatal, errors, ready: () => node.waitUntilReady(never) }
}

/** Resolves with the state of the promise after that much time. */
async function stateAfter(clock: FakeClock, ms: number, promise: Promise<unknown>): Promise<'ok' | 'waiting' | string> {
  let state: string = 'waiting'
  promise.then(
    () => {
      state = 'ok'
    },
    (error: Error) => {
      state = error.message
    },
  )
  await clock.advance(ms)
  return state
}

describe('our own Node', () => {
  it('B5: waits for the Node and its addresses, then goes on', async () => {
    const { node, clock, ready } = watch()
    const waiting = ready()
    node.synced()
    expect(await stateAfter(clock, 5_000, waiting)).toBe('waiting')
    node.put('n', record({ addresses: [] }))
    expect(await stateAfter(clock, 5_000, waiting)).toBe('waiting')
    node.put('n', record())
    expect(await stateAfter(clock, 2_000, waiting)).toBe('ok')
    expect(node.node?.addresses).toEqual(['192.0.2.1'])
  })

  it('B5: goes on without a Node after half a minute, and logs it', async () => {
    const { node, clock, ready, errors } = watch()
    const waiting = ready()
    node.synced()
    expect(await stateAfter(clock, 29_000, waiting)).toBe('waiting')
    expect(await stateAfter(clock, 3_000, waiting)).toBe('ok')
    expect(errors).toEqual(['Our Node does not exist; no endpoint will be local'])
  })

  it('waits without limit for an API server that does not answer', async () => {
    const { clock, ready } = watch()
    expect(await stateAfter(clock, 3_600_000, ready())).toBe('waiting')
  })

  it('B6: in NodeCIDR mode a missing Node and a Node without pod CIDRs are fatal, with different messages', async () => {
    const missing = watch(true)
    const first = missing.ready()
    missing.node.synced()
    expect(await stateAfter(missing.clock, 400_000, first)).toMatch(/does not exist/)
    const bare = watch(true)
    const second = bare.ready()
    bare.node.synced()
    bare.node.put('n', record({ podCidrs: [] }))
    expect(await stateAfter(bare.clock, 400_000, second)).toMatch(/does not have/)
  })

  it('B7: in NodeCIDR mode pod CIDRs without addresses are enough', async () => {
    const { node, clock, ready } = watch(true)
    const waiting = ready()
    node.synced()
    node.put('n', record({ addresses: [] }))
    expect(await stateAfter(clock, 32_000, waiting)).toBe('ok')
  })

  it('B8: changed pod CIDRs end the process only in NodeCIDR mode', async () => {
    for (const needs of [true, false]) {
      const { node, clock, fatal, ready } = watch(needs)
      const waiting = ready()
      node.synced()
      node.put('n', record())
      await stateAfter(clock, 2_000, waiting)
      node.put('n', record())
      expect(fatal).toEqual([])
      node.put('n', record({ podCidrs: ['10.0.1.0/24'] }))
      expect(fatal.map((error) => error.code)).toEqual(needs ? ['node'] : [])
    }
  })

  it('B9: changed addresses and a deleted Node are only logged; the last object is kept', async () => {
    const { node, clock, fatal, errors, ready } = watch(true)
    const waiting = ready()
    node.synced()
    node.put('n', record())
    await stateAfter(clock, 2_000, waiting)
    node.put('n', record({ addresses: ['192.0.2.9'] }))
    node.drop('n')
    expect(fatal).toEqual([])
    expect(errors).toHaveLength(2)
    expect(node.node?.addresses).toEqual(['192.0.2.9'])
  })
})

const facts: NodeFacts = {
  name: 'n',
  zone: 'a',
  ips: { 4: '192.0.2.1', 6: '::1', primary: 4 },
  nodePortAddresses: ['192.0.2.0/24'],
  interfaceAddresses: ['192.0.2.1', '127.0.0.1'],
  detectLocal: { mode: 'ClusterCIDR', clusterCidrs: [], podCidrs: [], bridgeInterface: '', interfaceNamePrefix: '' },
  masqueradeAll: false,
  masqueradeBit: 14,
  serviceCidrs: [],
  externalIps: true,
  listeners: [],
  apiServers: [],
}

describe('views of the node', () => {
  function views() {
    const reported: [Family, NodeView][] = []
    const made = new NodeViews(facts, [4, 6])
    made.watch((family, view) => void reported.push([family, view]))
    return { made, reported }
  }

  it('B20: a new zone is reported once per family, an update without effect is not', () => {
    const { made, reported } = views()
    made.update({ zone: 'a' })
    expect(reported).toEqual([])
    made.update({ zone: 'b' })
    expect(reported.map(([family, view]) => [family, view.zone])).toEqual([
      [4, 'b'],
      [6, 'b'],
    ])
  })

  it('an interface address inside the node port range is reported only for its family', () => {
    const { made, reported } = views()
    made.update({ interfaceAddresses: ['192.0.2.1', '192.0.2.7', '198.51.100.1'] })
    expect(reported.map(([family, view]) => [family, view.nodePorts.addresses])).toEqual([
      [4, ['192.0.2.1', '192.0.2.7']],
    ])
  })

  it('E14: ServiceCIDRs are reported as one set, and a CIDR that two objects list stays when one object goes', () => {
    const sets: (readonly string[])[] = []
    const cidrs = new ServiceCidrs(
      (list) => void sets.push(list),
      () => undefined,
    )
    cidrs.put('a', { name: 'a', cidrs: ['10.96.0.0/16', 'fd00::/112'] })
    expect(sets).toEqual([])
    cidrs.synced()
    cidrs.put('b', { name: 'b', cidrs: ['10.96.0.0/16'] })
    cidrs.drop('a')
    expect(sets.at(-1)).toEqual(['10.96.0.0/16'])
    cidrs.drop('b')
    expect(sets.at(-1)).toEqual([])
  })
})
