// Which messages bring virtual servers to what is wanted, in which order, and what happens when the remembered state is wrong.

import { beforeEach, describe, expect, it } from 'vitest'
import { type ServerEntry, serverDigest, serverKey } from '../../../../src/backend/ipvs/entries.ts'
import type { IpvsRequests } from '../../../../src/backend/ipvs/kernel/ipvs-netlink.ts'
import { VirtualServers } from '../../../../src/backend/ipvs/kernel/virtual-servers.ts'
import { ProxyError } from '../../../../src/lib/errors.ts'
import {
  ipvsCommand,
  type ListedDestination,
  type VirtualServer,
  type VirtualServerKey,
} from '../../../../src/sys/netlink/ipvs.ts'
import { FakeClock } from '../../../support/fake-clock.ts'

const names: ReadonlyMap<number, string> = new Map(Object.entries(ipvsCommand).map(([name, number]) => [number, name]))
const web: VirtualServer = {
  family: 4,
  protocol: 'tcp',
  ip: '172.30.0.41',
  port: 80,
  scheduler: 'rr',
  flags: 0,
  timeout: 0,
}
const key = serverKey(web)
const statistics = { connections: 0, packetsIn: 0, packetsOut: 0, bytesIn: 0, bytesOut: 0 }

/** Imitates IPVS: servers, destinations with connections, and its errors. */
class FakeKernel {
  readonly table = new Map<string, { service: VirtualServer; destinations: Map<string, ListedDestination> }>()
  log: string[] = []
  missing = new Set<string>()

  listServers = async () => [...this.table.values()].map(({ service }) => ({ ...service, statistics }))
  readServer = async (asked: VirtualServerKey) => {
    const found = this.table.get(serverKey(asked))
    return found && { ...found.service, statistics }
  }
  listDestinations = async (asked: VirtualServerKey) => [
    ...(this.table.get(serverKey(asked))?.destinations.values() ?? []),
  ]

  openRequests<T>(): IpvsRequests<T> {
    const refused: { subject: T; errno: number; error: ProxyError }[] = []
    const answer = (subject: T, errno: number) => {
      if (errno !== 0) refused.push({ subject, errno, error: new ProxyError('netlink', `errno ${errno}`) })
    }
    return {
      queueServer: (what, subject, service) => {
        this.log.push(`${names.get(what)} ${service.scheduler}`)
        const known = this.table.get(serverKey(service))
        if (this.missing.has(service.scheduler)) return answer(subject, 2)
        if (what === ipvsCommand.newService && known) return answer(subject, 17)
        if (what === ipvsCommand.setService && !known) return answer(subject, 3)
        this.table.set(serverKey(service), { service, destinations: known?.destinations ?? new Map() })
      },
      queueServerKey: (what, subject, asked) => {
        this.log.push(`${names.get(what)}`)
        answer(subject, this.table.delete(serverKey(asked)) ? 0 : 3)
      },
      queueDestination: (what, subject, asked, one) => {
        this.log.push(`${names.get(what)} ${one.ip} ${one.weight}`)
        const list = this.table.get(serverKey(asked))?.destinations
        if (list === undefined) return answer(subject, 3)
        const had = list.get(one.ip)
        if ((what === ipvsCommand.newDestination) === (had !== undefined)) return answer(subject, had ? 17 : 2)
        if (what === ipvsCommand.deleteDestination) list.delete(one.ip)
        else list.set(one.ip, { method: 0, active: had?.active ?? 0, inactive: had?.inactive ?? 0, statistics, ...one })
      },
      send: async () => refused,
    }
  }

  connect(ip: string, active: number): void {
    const one = this.table.get(key)?.destinations.get(ip) as ListedDestination
    this.table.get(key)?.destinations.set(ip, { ...one, active })
  }
}

let kernel: FakeKernel
let clock: FakeClock
let servers: VirtualServers
beforeEach(() => {
  kernel = new FakeKernel()
  clock = new FakeClock()
  servers = new VirtualServers({ kernel, family: 4, clock, drainLimitMs: 10_000 })
})

const entry = (server: VirtualServer, ...ips: string[]): ServerEntry => {
  const destinations = ips.map((ip) => ({ ip, port: 8080, weight: 1 }))
  return {
    id: `server ${key}`,
    kind: 'server',
    digest: serverDigest(server, destinations),
    server,
    destinations,
    port: 'p',
  }
}

async function want(one: ServerEntry | undefined) {
  kernel.log = []
  const refused = await servers.reconcile([{ key, id: `server ${key}`, entry: one }], {})
  return { log: kernel.log, refused }
}

describe('reconcile', () => {
  it('replaces one endpoint with two messages, first the one for the new endpoint', async () => {
    await want(entry(web, '10.0.0.1', '10.0.0.2'))
    const { log } = await want(entry(web, '10.0.0.2', '10.0.0.3'))
    expect(log).toEqual(['newDestination 10.0.0.3 1', 'setDestination 10.0.0.1 0'])
    expect(servers.digest(key)).toBe(entry(web, '10.0.0.2', '10.0.0.3').digest)
  })

  it('sends nothing when the server is as wanted', async () => {
    await want(entry(web, '10.0.0.1'))
    expect((await want(entry(web, '10.0.0.1'))).log).toEqual([])
  })

  it('changes settings without changing destinations', async () => {
    await want(entry(web, '10.0.0.1'))
    expect((await want(entry({ ...web, scheduler: 'wlc' }, '10.0.0.1'))).log).toEqual(['setService wlc'])
  })

  it('deletes UDP destinations at once', async () => {
    const dns: VirtualServer = { ...web, protocol: 'udp' }
    const udpKey = serverKey(dns)
    const wanted = (...ips: string[]) => [{ key: udpKey, id: 'x', entry: { ...entry(dns, ...ips), server: dns } }]
    await servers.reconcile(wanted('10.0.0.1', '10.0.0.2'), {})
    kernel.log = []
    await servers.reconcile(wanted('10.0.0.2'), {})
    expect(kernel.log).toEqual(['deleteDestination 10.0.0.1 0'])
    expect(servers.draining.isEmpty).toBe(true)
  })

  it('reads a server again when the remembered state is wrong, and repairs the server', async () => {
    await want(entry(web, '10.0.0.1'))
    kernel.table.clear()
    const { refused } = await want(entry(web, '10.0.0.1', '10.0.0.2'))
    expect(refused).toEqual([])
    expect([...(kernel.table.get(key)?.destinations.keys() ?? [])]).toEqual(['10.0.0.1', '10.0.0.2'])
  })

  it('takes over a server that someone else has created', async () => {
    kernel.table.set(key, { service: { ...web, scheduler: 'sh' }, destinations: new Map() })
    expect((await want(entry(web, '10.0.0.1'))).refused).toEqual([])
    expect(kernel.table.get(key)?.service.scheduler).toBe('rr')
  })

  it('names the module of a missing scheduler', async () => {
    kernel.missing.add('mh')
    const { refused } = await want(entry({ ...web, scheduler: 'mh' }, '10.0.0.1'))
    expect(refused[0]?.error.message).toContain('ip_vs_mh')
  })
})

describe('draining', () => {
  beforeEach(async () => {
    await want(entry(web, '10.0.0.1', '10.0.0.2'))
    kernel.connect('10.0.0.1', 3)
    await want(entry(web, '10.0.0.2'))
    kernel.log = []
  })

  it('waits for the last connection', async () => {
    expect(await servers.draining.sweep({})).toBe(0)
    kernel.connect('10.0.0.1', 0)
    expect(await servers.draining.sweep({})).toBe(1)
    expect(kernel.log).toEqual(['deleteDestination 10.0.0.1 0'])
    expect(servers.draining.isEmpty).toBe(true)
  })

  it('ends at the time limit', async () => {
    await clock.advance(10_001)
    expect(await servers.draining.sweep({})).toBe(1)
  })

  it('ends when the endpoint returns, and keeps the connections', async () => {
    expect((await want(entry(web, '10.0.0.1', '10.0.0.2'))).log).toEqual(['setDestination 10.0.0.1 1'])
    expect(await servers.draining.sweep({})).toBe(0)
    expect(kernel.table.get(key)?.destinations.get('10.0.0.1')?.active).toBe(3)
  })

  it('continues after a restart', async () => {
    const next = new VirtualServers({ kernel, family: 4, clock, drainLimitMs: 10_000 })
    await next.read({})
    expect(next.digest(key)).toBe(entry(web, '10.0.0.2').digest)
    expect(next.draining.isEmpty).toBe(false)
    kernel.connect('10.0.0.1', 0)
    expect(await next.draining.sweep({})).toBe(1)
  })
})

describe('isUnchanged', () => {
  it('notices other weights, other destinations and a missing server', async () => {
    await want(entry(web, '10.0.0.1'))
    expect(await servers.isUnchanged(key, {})).toBe(true)
    const list = kernel.table.get(key)?.destinations as Map<string, ListedDestination>
    const one = list.get('10.0.0.1') as ListedDestination
    list.set('10.0.0.1', { ...one, weight: 9 })
    expect(await servers.isUnchanged(key, {})).toBe(false)
    list.set('10.0.0.1', one)
    list.set('10.0.0.9', { ...one, ip: '10.0.0.9' })
    expect(await servers.isUnchanged(key, {})).toBe(false)
    kernel.table.clear()
    expect(await servers.isUnchanged(key, {})).toBe(false)
  })
})
