// Checks which UDP flows are stale, and how they are deleted.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Flow, FlowTable } from '../../../src/engine/flows/flow-table.ts'
import { type CleanerOptions, ConntrackCleaner, staleRule } from '../../../src/engine/flows/stale-flows.ts'
import type { Family } from '../../../src/lib/ip.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import type { Endpoint, Frontend, Protocol, ServicePort } from '../../../src/model/types.ts'
import { servicePort } from '../../support/builders.ts'

const endpoint = (text: string): Endpoint => {
  const [ip, port] = text.split(' ')
  return { ip: ip as string, port: Number(port), local: false }
}

const frontend = (kind: Frontend['kind'], ip: string, port: number): Frontend => ({ kind, ip, port, allow: [] })

function dnsPort(given: Partial<ServicePort> = {}): ServicePort {
  return servicePort({
    service: 'ns/dns',
    portName: 'dns',
    protocol: 'udp',
    frontends: [
      frontend('cluster-ip', '172.30.1.1', 8000),
      frontend('load-balancer', '1.2.3.4', 8000),
      frontend('external-ip', '192.168.99.100', 8000),
      frontend('node-port', '', 32000),
    ],
    serving: [endpoint('10.240.0.4 9090')],
    endpoints: 1,
    ...given,
  })
}

const protocolNumber: Readonly<Record<Protocol, number>> = { tcp: 6, udp: 17, sctp: 132 }

function flow(to: string, answeredBy: string, protocol: Protocol = 'udp'): Flow {
  const [destination, destinationPort] = to.split(' ')
  const [replySource, replySourcePort] = answeredBy.split(' ')
  return {
    protocol: protocolNumber[protocol],
    destination: destination as string,
    destinationPort: Number(destinationPort),
    replySource: replySource as string,
    replySourcePort: Number(replySourcePort),
  }
}

const own = ['192.168.0.2', '10.0.0.1']
const ipFrontends = ['172.30.1.1 8000', '1.2.3.4 8000', '192.168.99.100 8000']
const stale = (flows: readonly Flow[], ports = [dnsPort()], addresses: readonly string[] = own) => {
  const rule = staleRule(ports, addresses)
  return flows.filter((one) => rule.isStale(one))
}

describe('which UDP flows are stale', () => {
  it.each(ipFrontends)(
    'H1: %s: a flow to a serving endpoint is kept, a flow to any other endpoint is deleted',
    (to) => {
      expect(stale([flow(to, '10.240.0.4 9090')])).toEqual([])
      const gone = flow(to, '10.240.1.5 9090')
      expect(stale([gone])).toEqual([gone])
    },
  )

  it('H2: the same address with the old endpoint port is deleted', () => {
    const old = flow('172.30.1.1 8000', '10.240.0.4 8080')
    expect(stale([old])).toEqual([old])
  })

  it('H3: TCP and SCTP flows with the same addresses are kept', () => {
    const flows = [...ipFrontends, '192.168.0.2 32000'].flatMap((to) => [
      flow(to, '10.240.1.5 9090', 'tcp'),
      flow(to, '10.240.1.5 9090', 'sctp'),
    ])
    expect(stale(flows)).toEqual([])
    expect(stale(flows, [dnsPort({ protocol: 'tcp' }), dnsPort({ protocol: 'sctp' })])).toEqual([])
  })

  it('H4: another port of the service address is kept', () => {
    expect(stale([flow('172.30.1.1 3000', '10.240.1.5 9090')])).toEqual([])
  })

  it('H5: a node port flow to another endpoint is deleted, for every address of the node', () => {
    const elsewhere = [...own, '127.0.0.1', '127.9.9.9'].map((ip) => flow(`${ip} 32000`, '10.240.2.6 9090'))
    expect(stale(elsewhere)).toEqual(elsewhere)
    expect(stale([flow('192.168.0.2 32000', '10.240.0.4 9090')])).toEqual([])
  })

  it('H5: a flow to the same port number of another machine is kept', () => {
    expect(stale([flow('192.168.0.3 32000', '192.168.0.3 32000'), flow('8.8.8.8 32000', '8.8.8.8 32000')])).toEqual([])
  })

  it('keeps a flow to a serving endpoint of a frontend whose port number is also a node port', () => {
    const other = dnsPort({
      frontends: [frontend('cluster-ip', '192.168.0.2', 32000)],
      serving: [endpoint('10.240.7.7 53')],
    })
    expect(stale([flow('192.168.0.2 32000', '10.240.7.7 53')], [dnsPort(), other])).toEqual([])
  })

  it('H6: a flow that was never translated is deleted once there is a serving endpoint', () => {
    const untranslated = flow('172.30.1.1 8000', '172.30.1.1 8000')
    expect(stale([untranslated])).toEqual([untranslated])
    expect(stale([untranslated], [dnsPort({ serving: [] })])).toEqual([])
  })

  it('H7: flows of a service without serving endpoints are kept', () => {
    const flows = [...ipFrontends, '192.168.0.2 32000'].map((to) => flow(to, '10.240.1.5 9090'))
    expect(stale(flows, [dnsPort({ serving: [] })])).toEqual([])
  })

  it('keeps flows to every serving endpoint, also to those that policies would not choose now', () => {
    const address = fc.ipV4().map((ip) => `${ip} 53`)
    fc.assert(
      fc.property(fc.array(address, { minLength: 1, maxLength: 6 }), fc.constantFrom(...ipFrontends), (serving, to) => {
        const port = dnsPort({ serving: serving.map(endpoint), cluster: [], local: [], internal: 'reject' })
        expect(
          stale(
            serving.map((from) => flow(to, from)),
            [port],
          ),
        ).toEqual([])
      }),
    )
  })

  it('works for IPv6', () => {
    const port = dnsPort({
      family: 6,
      frontends: [frontend('cluster-ip', 'fd00::1', 53), frontend('node-port', '', 32000)],
      serving: [endpoint('fd00:1::2 53')],
    })
    const flows = [
      flow('fd00::1 53', 'fd00:1::3 53'),
      flow('fd00::1 53', 'fd00:1::2 53'),
      flow('::1 32000', 'fd00:1::9 53'),
    ]
    expect(stale(flows, [port], ['fe80::1'])).toEqual([flows[0], flows[2]])
  })
})

/** A flow table in memory that records its calls. */
function table(flows: Flow[], interruptions = 0) {
  const calls: string[] = []
  let running = 0
  const made: FlowTable<Flow> & { calls: string[]; flows: Flow[] } = {
    calls,
    flows,
    async list(filter, visit, { signal }) {
      calls.push(`list ${filter.family}`)
      expect(++running).toBe(1)
      const asked = flows.filter((flow) => filter.destinationPorts?.has(flow.destinationPort))
      for (let at = 0; at < asked.length; at += 512) {
        visit(asked.slice(at, at + 512))
        if (at % 51200 === 0) await new Promise((resolve) => setImmediate(resolve))
        signal.throwIfAborted()
      }
      running--
      return { interrupted: calls.filter((call) => call.startsWith('list')).length <= interruptions }
    },
    async remove(gone) {
      calls.push(`remove ${gone.length}`)
      const set = new Set(gone)
      const before = flows.length
      made.flows = flows = flows.filter((flow) => !set.has(flow))
      return before - flows.length
    },
  }
  return made
}

function cleaner(
  flows: FlowTable<Flow>,
  ports: readonly ServicePort[] = [dnsPort()],
  answers?: CleanerOptions<Flow>['answers'],
) {
  return new ConntrackCleaner({
    table: flows,
    ports: () => ports,
    nodeAddresses: () => own,
    answers,
    clock: systemClock,
    log: silentLogger,
  })
}

describe('cleaning', () => {
  it('H8: one million flows: one listing, one pass of deletions, only stale flows are deleted', async () => {
    const kept = flow('172.30.1.1 8000', '10.240.0.4 9090')
    const gone = flow('172.30.1.1 8000', '10.240.1.5 9090')
    const flows = Array.from({ length: 1_000_000 }, (_, i) => ({ ...(i % 1000 === 7 ? gone : kept) }))
    const million = table(flows)
    const result = await cleaner(million).clean(4)
    expect(result.deleted).toBe(1000)
    expect(million.calls).toEqual(['list 4', 'remove 1000'])
    expect(million.flows).toHaveLength(999_000)
    expect(million.flows.some((flow) => flow.replySource === '10.240.1.5')).toBe(false)
  })

  it('limits its memory: further passes delete the rest of many stale flows', async () => {
    const flows = Array.from({ length: 250_000 }, () => flow('172.30.1.1 8000', '10.240.1.5 9090'))
    const many = table(flows)
    const result = await cleaner(many).clean(4)
    expect(result.deleted).toBe(250_000)
    expect(many.calls.filter((call) => call.startsWith('list'))).toHaveLength(3)
    expect(many.flows).toEqual([])
  })

  it('H9: deletes nothing if no flow is stale, and lists nothing if there is no UDP service', async () => {
    const clean = table([flow('172.30.1.1 8000', '10.240.0.4 9090')])
    expect(await cleaner(clean).clean(4)).toMatchObject({ deleted: 0 })
    expect(clean.calls).toEqual(['list 4'])
    const idle = table([])
    await cleaner(idle, [dnsPort({ protocol: 'tcp' })]).clean(4)
    expect(idle.calls).toEqual([])
  })

  it('keeps flows that a relay of the same service answers, and no others', async () => {
    const kept = flow('172.30.1.1 8000', '10.0.0.1 41000')
    const stale = flow('172.30.1.1 8000', '10.0.0.1 41001')
    // The relay of another service has the port that the relay of this service had before a restart.
    const astray = flow('172.30.1.1 8000', '10.0.0.1 41002')
    const all = table([kept, stale, astray])
    const owners = new Map([
      [41_000, dnsPort().id],
      [41_002, 'other/service/udp'],
    ])
    const answers = (family: number, id: string, ip: string, port: number) =>
      family === 4 && ip === '10.0.0.1' && owners.get(port) === id
    expect(await cleaner(all, [dnsPort()], answers).clean(4)).toMatchObject({ deleted: 2 })
    expect(all.flows).toEqual([kept])
  })

  it('H10: repeats an interrupted listing, and uses the fifth as it is', async () => {
    const gone = flow('172.30.1.1 8000', '10.240.1.5 9090')
    const restless = table([gone], 99)
    expect(await cleaner(restless).clean(4)).toMatchObject({ deleted: 1 })
    expect(restless.calls).toEqual([...Array(5).fill('list 4'), 'remove 1'])
    const once = table([{ ...gone }], 1)
    await cleaner(once).clean(4)
    expect(once.calls).toEqual(['list 4', 'list 4', 'remove 1'])
  })

  it('ends on an error, reports it, and works the next time', async () => {
    const broken = table([])
    const works = broken.list
    broken.list = () => Promise.reject(new Error('no conntrack'))
    const cleaning = cleaner(broken)
    expect(await cleaning.clean(4)).toMatchObject({ deleted: 0, error: new Error('no conntrack') })
    broken.list = works
    expect((await cleaning.clean(4)).error).toBeUndefined()
  })

  it('counts what was deleted before an error', async () => {
    const flows = Array.from({ length: 15_000 }, () => flow('172.30.1.1 8000', '10.240.1.5 9090'))
    const failing = table(flows)
    const remove = failing.remove
    failing.remove = (gone, wait) => (gone.length === 10_000 ? remove(gone, wait) : Promise.reject(new Error('EPERM')))
    expect(await cleaner(failing).clean(4)).toMatchObject({ deleted: 10_000, error: new Error('EPERM') })
  })

  it('runs once at a time and joins requests that wait', async () => {
    const flows = table([flow('172.30.1.1 8000', '10.240.1.5 9090')])
    const cleaning = cleaner(flows)
    const first = cleaning.clean(4)
    await Promise.resolve()
    await Promise.resolve()
    const results = await Promise.all([
      first,
      ...Array.from({ length: 50 }, () => cleaning.clean(4)),
      cleaning.clean(6),
    ])
    expect(flows.calls.filter((call) => call === 'list 4')).toHaveLength(2)
    expect(flows.calls.filter((call) => call === 'list 6')).toHaveLength(1)
    expect(results[0]?.deleted).toBe(1)
    expect(new Set(results.slice(1, 51)).size).toBe(1)
  })

  it('reads the service ports when the run starts, not when it is requested', async () => {
    let ports: ServicePort[] = []
    const flows = table([flow('172.30.1.1 8000', '10.240.1.5 9090')])
    const cleaning = new ConntrackCleaner({
      table: flows,
      ports: (_: Family) => ports,
      nodeAddresses: () => own,
      clock: systemClock,
      log: silentLogger,
    })
    const asked = cleaning.clean(4)
    ports = [dnsPort()]
    expect((await asked).deleted).toBe(1)
  })

  it('stops in the middle', async () => {
    const flows = Array.from({ length: 300_000 }, () => flow('172.30.1.1 8000', '10.240.0.4 9090'))
    const cleaning = cleaner(table(flows))
    const running = cleaning.clean(4)
    const waiting = new Promise((resolve) => setImmediate(resolve)).then(() => cleaning.clean(4))
    await new Promise((resolve) => setImmediate(resolve))
    await cleaning.stop()
    expect((await running).error).toBeDefined()
    expect((await waiting).error).toBeDefined()
  })
})
