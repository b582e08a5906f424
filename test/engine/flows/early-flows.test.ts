// Checks which connections count as dialled too early, and when they are looked for.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { EarlyFlowCleaner, earlyRule } from '../../../src/engine/flows/early-flows.ts'
import type { Flow, FlowTable } from '../../../src/engine/flows/flow-table.ts'
import { LiveFrontends } from '../../../src/engine/flows/live-frontends.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import { runAtOnce } from '../../../src/lib/yielding.ts'
import type { Frontend, Protocol, ServicePort } from '../../../src/model/types.ts'
import { service, servicePort, tcp } from '../../support/builders.ts'

const numbers: Readonly<Record<Protocol, number>> = { tcp: 6, udp: 17, sctp: 132 }
const frontend = (kind: Frontend['kind'], ip: string, port: number): Frontend => ({ kind, ip, port, allow: [] })
const one = [{ ip: '10.0.0.1', port: 8080, local: true }]

const web = (given: Partial<ServicePort> = {}): ServicePort =>
  servicePort({
    service: 'ns/web',
    protocol: 'tcp',
    frontends: [frontend('cluster-ip', '172.30.0.1', 80), frontend('node-port', '', 30080)],
    cluster: one,
    ...given,
  })

const flow = (destination: string, destinationPort: number, given: Partial<Flow> = {}): Flow => ({
  protocol: 6,
  destination,
  destinationPort,
  replySource: destination,
  replySourcePort: destinationPort,
  ...given,
})

function makeRule(ports: readonly ServicePort[], own: readonly string[] = ['192.168.0.2']) {
  const steps = earlyRule(ports, own)
  for (;;) {
    const step = steps.next()
    if (step.done) return step.value
  }
}

describe('the rule', () => {
  it.each<[string, Flow, boolean]>([
    ['an untranslated connection to a cluster IP is early', flow('172.30.0.1', 80), true],
    ['a connection to another port is not', flow('172.30.0.1', 81), false],
    ['a connection of another protocol is not', flow('172.30.0.1', 80, { protocol: 132 }), false],
    ['a translated connection is not', flow('172.30.0.1', 80, { replySource: '10.0.0.1' }), false],
    ['a connection whose port is translated is not', flow('172.30.0.1', 80, { replySourcePort: 8080 }), false],
    ['a connection to a node port of this node is early', flow('192.168.0.2', 30080), true],
    ['a connection to the same port of another machine is not', flow('192.168.0.3', 30080), false],
  ])('%s', (_, given, early) => {
    expect(makeRule([web()]).isEarly(given)).toBe(early)
  })

  it('leaves connections to a service without endpoints alone: our rules refuse them anyway', () => {
    expect(makeRule([web({ cluster: [] })]).ports.size).toBe(0)
  })

  it('calls a flow early only if it is untranslated and its destination is a live frontend of its protocol', () => {
    const ip = fc.constantFrom('172.30.0.1', '172.30.0.2', '192.168.0.2', '8.8.8.8')
    const port = fc.constantFrom(80, 81, 30080)
    const protocol = fc.constantFrom<Protocol>('tcp', 'udp', 'sctp')
    const kind = fc.constantFrom<Frontend['kind']>('cluster-ip', 'load-balancer', 'external-ip', 'node-port')
    const ports = fc.array(
      fc.record({ kind, ip, port, protocol, live: fc.boolean() }).map((given) => {
        const address = frontend(given.kind, given.kind === 'node-port' ? '' : given.ip, given.port)
        return web({ protocol: given.protocol, frontends: [address], cluster: given.live ? one : [] })
      }),
    )
    const anyFlow = fc.record({
      destination: ip,
      destinationPort: port,
      protocol,
      replySource: ip,
      replySourcePort: port,
    })
    fc.assert(
      fc.property(ports, anyFlow, (list, given) => {
        const tested = { ...given, protocol: numbers[given.protocol] }
        const untranslated = given.replySource === given.destination && given.replySourcePort === given.destinationPort
        const reached = list.some(
          ({ protocol: own, cluster, frontends: [at] }) =>
            own === given.protocol &&
            cluster.length > 0 &&
            at?.port === given.destinationPort &&
            (at.kind === 'node-port' ? given.destination === '192.168.0.2' : at.ip === given.destination),
        )
        const rule = makeRule(list)
        expect(rule.isEarly(tested)).toBe(untranslated && reached)
        if (untranslated && reached) {
          expect(rule.ports.get(tested.protocol)?.has(given.destinationPort)).toBe(true)
        }
      }),
    )
  })
})

describe('live frontends', () => {
  it('names a service once when it gets a frontend or its first endpoint, and not when endpoints change', () => {
    const live = new LiveFrontends()
    runAtOnce(live.note('ns/web', [web({ cluster: [] })]))
    expect(live.take()).toEqual([])
    runAtOnce(live.note('ns/web', [web()]))
    expect(live.list()).toEqual(['ns/web'])
    expect(live.take()).toEqual(['ns/web'])
    runAtOnce(live.note('ns/web', [web({ cluster: [...one, { ip: '10.0.0.2', port: 8080, local: false }] })]))
    expect(live.take()).toEqual([])
    runAtOnce(live.note('ns/web', [web({ frontends: [frontend('load-balancer', '1.2.3.4', 80)] })]))
    expect(live.take()).toEqual(['ns/web'])
    runAtOnce(live.note('ns/web', []))
    runAtOnce(live.note('ns/web', [web({ frontends: [frontend('load-balancer', '1.2.3.4', 80)] })]))
    expect(live.take()).toEqual(['ns/web'])
  })

  it('keeps the services that are not written yet', () => {
    const live = new LiveFrontends()
    for (const service of ['ns/a', 'ns/b']) runAtOnce(live.note(service, [web({ service })]))
    expect(live.take(['ns/b', 'ns/c'])).toEqual(['ns/b'])
    expect(live.take()).toEqual(['ns/a'])
  })
})

/** A table that records what is asked of it. */
function makeTable(flows: Flow[]) {
  const asked: string[] = []
  const table: FlowTable<Flow> = {
    async list({ protocol, destinationPorts, unreplied }, visit) {
      asked.push(`list ${protocol} ${destinationPorts === undefined ? 'all' : [...destinationPorts]} ${unreplied}`)
      visit(flows.filter((given) => protocol === undefined || given.protocol === protocol))
      return { interrupted: false }
    },
    async remove(list) {
      asked.push(`remove ${list.length}`)
      for (const given of list) flows.splice(flows.indexOf(given), 1)
      return list.length
    },
  }
  return { table, asked }
}

function makeCleaner(flows: Flow[], countFlows: () => number | undefined = () => flows.length, clock = systemClock) {
  const { table, asked } = makeTable(flows)
  const resolved: string[] = []
  const cleaner = new EarlyFlowCleaner({
    table,
    recordOf: (key) => service({ key, clusterIps: [key === 'ns/web' ? '172.30.0.1' : '172.30.0.7'], ports: [tcp(80)] }),
    portsOf(key) {
      resolved.push(key)
      return [web({ service: key })]
    },
    nodeAddresses: () => [],
    countFlows,
    onRemoved: (_, removed) => asked.push(`removed ${removed}`),
    clock,
    log: silentLogger,
  })
  return { cleaner, asked, resolved, flows }
}

describe('the cleaner', () => {
  it('removes early connections before the frontends are written, and those that came meanwhile afterwards', async () => {
    const { cleaner, flows } = makeCleaner([flow('172.30.0.1', 80), flow('172.30.0.9', 80)])
    const left = await cleaner.around(4, ['ns/web'], async () => {
      const before = flows.map(({ destination }) => destination)
      flows.push(flow('172.30.0.1', 80))
      return before
    })
    expect(left).toEqual(['172.30.0.9'])
    cleaner.clean(4, ['ns/web'])
    await expect.poll(() => flows.map(({ destination }) => destination), { timeout: 20_000 }).toEqual(['172.30.0.9'])
    await cleaner.stop()
  })

  it('resolves no service if no connection is untranslated and without a reply', async () => {
    const { cleaner, asked, resolved } = makeCleaner([flow('172.30.0.1', 80, { replySource: '10.0.0.1' })])
    await cleaner.around(4, ['ns/web'], async () => undefined)
    expect(resolved).toEqual([])
    expect(asked).toEqual(['list undefined all true', 'removed 0'])
  })

  it('resolves only services that have a destination of such a connection', async () => {
    const { cleaner, resolved, flows } = makeCleaner([flow('172.30.0.1', 80)])
    await cleaner.around(4, ['ns/other', 'ns/web'], async () => undefined)
    expect(resolved).toEqual(['ns/web'])
    expect(flows).toEqual([])
  })

  it('looks once for writes that follow soon if nothing is untranslated and without a reply', async () => {
    let now = 0
    const { cleaner, asked } = makeCleaner([], () => 1, { ...systemClock, monotonic: () => now })
    for (; now < 300; now += 100) await cleaner.around(4, [`ns/web${now}`], async () => undefined)
    expect(asked).toEqual(['list undefined all true', 'removed 0'])
    await cleaner.around(4, ['ns/web'], async () => undefined)
    await cleaner.around(6, ['ns/web'], async () => undefined)
    expect(asked).toHaveLength(6)
  })

  it('does not walk an empty table, but one whose size is not known', async () => {
    let size: number | undefined = 0
    const { cleaner, asked } = makeCleaner([], () => size)
    await cleaner.around(4, ['ns/web'], async () => undefined)
    expect(asked).toEqual(['removed 0'])
    size = undefined
    await cleaner.around(6, ['ns/web'], async () => undefined)
    expect(asked).toEqual(['removed 0', 'list undefined all true', 'removed 0'])
  })

  it('looks before each write while a connection to anything is untranslated and without a reply', async () => {
    const { cleaner, asked, flows } = makeCleaner([flow('172.30.0.9', 80)])
    await cleaner.around(4, ['ns/web'], async () => undefined)
    flows.push(flow('172.30.0.1', 80))
    await cleaner.around(4, ['ns/web'], async () => undefined)
    expect(flows.map(({ destination }) => destination)).toEqual(['172.30.0.9'])
    expect(asked.filter((line) => line.startsWith('list undefined'))).toHaveLength(2)
  })

  it('does not look if no frontend goes live, and does not keep a write waiting for a large table', async () => {
    const { cleaner, asked } = makeCleaner([flow('172.30.0.1', 80)], () => 1_000_000)
    await cleaner.around(4, [], async () => undefined)
    await cleaner.around(4, ['ns/web'], async () => undefined)
    cleaner.clean(4, [])
    expect(asked).toEqual([])
  })

  it('looks again while a write takes long', async () => {
    const { cleaner, flows } = makeCleaner([])
    await cleaner.around(4, ['ns/web'], async () => {
      flows.push(flow('172.30.0.1', 80))
      await expect.poll(() => flows.length, { timeout: 20_000 }).toBe(0)
    })
    await cleaner.stop()
  })

  it('a table that cannot be read does not keep frontends from being written', async () => {
    const refusing = new EarlyFlowCleaner({
      table: { list: () => Promise.reject(new Error('refused')), remove: async () => 0 },
      recordOf: () => undefined,
      portsOf: () => [],
      nodeAddresses: () => [],
      countFlows: () => 0,
      onRemoved: () => {},
      clock: systemClock,
      log: silentLogger,
    })
    expect(await refusing.around(4, ['ns/web'], async () => 'written')).toBe('written')
    await refusing.stop()
  })
})
