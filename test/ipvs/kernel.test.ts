// Sends netlink messages to the kernel itself, and compares them with what ipvsadm and ipset print and with what is read back.

import { release } from 'node:os'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ipvs } from '../../src/backend/ipvs/backend.ts'
import { DeviceAddresses } from '../../src/backend/ipvs/kernel/device-addresses.ts'
import { Ipsets } from '../../src/backend/ipvs/kernel/ipsets.ts'
import { IpvsNetlink } from '../../src/backend/ipvs/kernel/ipvs-netlink.ts'
import { listSets } from '../../src/backend/ipvs/set-definitions.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { ipvsCommand, type VirtualServer } from '../../src/sys/netlink/ipvs.ts'
import { readSysctl } from '../../src/sys/sysctl.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { nodeView } from '../scenarios/node-facts.ts'
import { settings as networkSettings } from './ipvs-network.ts'

let space: EnteredNamespace
let kernel: IpvsNetlink
beforeAll(async () => {
  space = enterNamespace()
  kernel = (await IpvsNetlink.open()) as IpvsNetlink
})
afterAll(() => {
  kernel?.close()
  space?.leave()
})

const plain = { scheduler: 'rr', flags: 0, timeout: 0 }
const servers: readonly VirtualServer[] = [
  { family: 4, protocol: 'tcp', ip: '172.30.0.41', port: 80, scheduler: 'rr', flags: 1, timeout: 10_800 },
  { family: 4, protocol: 'udp', ip: '172.30.0.42', port: 53, ...plain, scheduler: 'wlc' },
  { family: 4, protocol: 'sctp', ip: '172.30.0.43', port: 7, ...plain, scheduler: 'sh' },
  { family: 6, protocol: 'tcp', ip: 'fd00:172:30::41', port: 443, ...plain, scheduler: 'mh', flags: 0x10 },
]

async function send(write: (requests: ReturnType<typeof kernel.openRequests<string>>) => void) {
  const requests = kernel.openRequests<string>('test', {})
  write(requests)
  return requests.send()
}

describe('IPVS', () => {
  it('has the servers and destinations that we write, and ipvsadm prints them', async () => {
    const refused = await send((requests) => {
      for (const server of servers) {
        requests.queueServer(ipvsCommand.newService, server.ip, server)
        const ip = server.family === 4 ? '10.180.0.1' : 'fd00:10::1'
        requests.queueDestination(ipvsCommand.newDestination, ip, server, { ip, port: 8080, weight: 3 })
      }
    })
    expect(refused).toEqual([])
    const seen = (await kernel.listServers({})).map(({ statistics: _, ...server }) => server)
    expect([...seen].sort((a, b) => (a.ip < b.ip ? -1 : 1))).toEqual(
      [...servers].sort((a, b) => (a.ip < b.ip ? -1 : 1)),
    )
    for (const server of servers) {
      const [one] = await kernel.listDestinations(server, {})
      expect(one).toMatchObject({
        ip: server.family === 4 ? '10.180.0.1' : 'fd00:10::1',
        port: 8080,
        weight: 3,
        method: 0,
        active: 0,
        inactive: 0,
        statistics: { connections: 0, bytesIn: 0 },
      })
      expect((await kernel.readServer(server, {}))?.scheduler).toBe(server.scheduler)
    }
    const listed = space.exec('ipvsadm', ['-Ln']).replace(/ +/g, ' ')
    for (const line of [
      'TCP 172.30.0.41:80 rr persistent 10800\n -> 10.180.0.1:8080 Masq 3 0 0',
      'UDP 172.30.0.42:53 wlc\n -> 10.180.0.1:8080 Masq 3 0 0',
      'SCTP 172.30.0.43:7 sh\n -> 10.180.0.1:8080 Masq 3 0 0',
      'TCP [fd00:172:30::41]:443 mh (mh-port)\n -> [fd00:10::1]:8080 Masq 3 0 0',
    ]) {
      expect(listed).toContain(line)
    }
  })

  it('changes and deletes them, and reports errors', async () => {
    const [web] = servers as [VirtualServer]
    const destination = { ip: '10.180.0.1', port: 8080, weight: 0 }
    expect(await send((one) => one.queueDestination(ipvsCommand.setDestination, '', web, destination))).toEqual([])
    expect((await kernel.listDestinations(web, {}))[0]?.weight).toBe(0)
    expect(await send((one) => one.queueServer(ipvsCommand.setService, '', { ...web, scheduler: 'lc' }))).toEqual([])
    expect((await kernel.readServer(web, {}))?.scheduler).toBe('lc')
    const errno = async (write: Parameters<typeof send>[0]) => (await send(write)).map((one) => one.errno)
    expect(await errno((one) => one.queueServer(ipvsCommand.newService, '', web))).toEqual([17])
    expect(await errno((one) => one.queueServer(ipvsCommand.setService, '', { ...web, scheduler: 'nosuch' }))).toEqual([
      2,
    ])
    expect(await errno((one) => one.queueServerKey(ipvsCommand.deleteService, '', { ...web, port: 9 }))).toEqual([3])
    expect(
      await errno((one) => one.queueDestination(ipvsCommand.deleteDestination, '', web, { ...destination, port: 9 })),
    ).toEqual([2])
    expect(await errno((one) => one.queueDestination(ipvsCommand.newDestination, '', web, destination))).toEqual([17])
    expect(await send((one) => one.queueServerKey(ipvsCommand.deleteService, '', web))).toEqual([])
    expect(await kernel.readServer(web, {})).toBeUndefined()
  })

  it.each(['rr', 'wrr', 'lc', 'wlc', 'lblc', 'lblcr', 'dh', 'sh', 'sed', 'nq', 'fo', 'ovf', 'mh'])(
    'has the scheduler %s',
    async (scheduler) => {
      const server: VirtualServer = { family: 4, protocol: 'tcp', ip: '198.51.100.1', port: 1, ...plain, scheduler }
      expect(await send((one) => one.queueServer(ipvsCommand.newService, '', server))).toEqual([])
      expect(await send((one) => one.queueServerKey(ipvsCommand.deleteService, '', server))).toEqual([])
    },
  )

  it('is prepared with its settings, and the error names the module of a missing scheduler', async () => {
    const settings = {
      counters: true,
      syncPeriodMs: 30_000,
      ipvs: {
        scheduler: 'wlc',
        excludeCidrs: [],
        strictArp: true,
        tcpTimeoutMs: 902_000,
        tcpFinTimeoutMs: 0,
        udpTimeoutMs: 302_000,
      },
    }
    const view = nodeView(networkSettings, 4, ['192.168.0.2'])
    await ipvs(settings).prepare(view, silentLogger)
    const value = (name: string) => Number(readSysctl(name))
    expect(space.exec('ipvsadm', ['-l', '--timeout'])).toContain('902 120 302')
    // Before 5.9 the kernel would delay a client that uses its port again by a second.
    const [major = 0, minor = 0] = release().split('.').map(Number)
    expect(value('net/ipv4/vs/conn_reuse_mode')).toBe(major > 5 || (major === 5 && minor >= 9) ? 1 : 0)
    for (const name of ['conntrack', 'expire_nodest_conn', 'expire_quiescent_template']) {
      expect([name, value(`net/ipv4/vs/${name}`)]).toEqual([name, 1])
    }
    expect(value('net/ipv4/ip_forward')).toBe(1)
    expect([value('net/ipv4/conf/all/arp_ignore'), value('net/ipv4/conf/all/arp_announce')]).toEqual([1, 2])
    expect(space.exec('ipvsadm', ['-Ln'])).not.toContain('198.51.100.0')
    const nosuch = ipvs({ ...settings, ipvs: { ...settings.ipvs, scheduler: 'nosuch' } })
    await expect(nosuch.prepare(view, silentLogger)).rejects.toThrow(/"nosuch": is the module ip_vs_nosuch there/)
  })

  it('sets timeouts', async () => {
    await kernel.setTimeouts({ tcp: 901, tcpFin: 61, udp: 301 })
    expect(space.exec('ipvsadm', ['-l', '--timeout'])).toContain('901 61 301')
    await kernel.setTimeouts({ tcp: 900, tcpFin: 120, udp: 300 })
  })
})

/** The sets as kube-proxy creates them: other tools look for these names and types. */
function kubeSets(family: 4 | 6): string[] {
  const hash = (name: string, type: string) =>
    `${name} hash:${type} family ${family === 4 ? 'inet' : 'inet6'} hashsize 1024 maxelem 65536`
  const ports = (name: string) => `${name} bitmap:port range 0-65535`
  const six = (line: string) => {
    const [name = '', ...rest] = line.split(' ')
    return [name.replace('KUBE-', 'KUBE-6-').slice(0, 31), ...rest].join(' ')
  }
  const lines = [
    hash('KUBE-LOOP-BACK', 'ip,port,ip'),
    hash('KUBE-CLUSTER-IP', 'ip,port'),
    hash('KUBE-EXTERNAL-IP', 'ip,port'),
    hash('KUBE-EXTERNAL-IP-LOCAL', 'ip,port'),
    hash('KUBE-LOAD-BALANCER', 'ip,port'),
    hash('KUBE-LOAD-BALANCER-LOCAL', 'ip,port'),
    hash('KUBE-LOAD-BALANCER-FW', 'ip,port'),
    hash('KUBE-LOAD-BALANCER-SOURCE-IP', 'ip,port,ip'),
    hash('KUBE-LOAD-BALANCER-SOURCE-CIDR', 'ip,port,net'),
    ports('KUBE-NODE-PORT-TCP'),
    ports('KUBE-NODE-PORT-LOCAL-TCP'),
    ports('KUBE-NODE-PORT-UDP'),
    ports('KUBE-NODE-PORT-LOCAL-UDP'),
    hash('KUBE-NODE-PORT-SCTP-HASH', 'ip,port'),
    hash('KUBE-NODE-PORT-LOCAL-SCTP-HASH', 'ip,port'),
    ports('KUBE-HEALTH-CHECK-NODE-PORT'),
    hash('KUBE-IPVS-IPS', 'ip'),
  ]
  return family === 4 ? lines : lines.map(six)
}

describe('ipset', () => {
  const samples: Readonly<Record<string, readonly string[]>> = {
    'hash:ip': ['10.0.0.1'],
    'hash:ip,port': ['10.0.0.1,tcp:80', '10.0.0.1,udp:53', '10.0.0.1,sctp:7'],
    'hash:ip,port,ip': ['10.0.0.1,tcp:80,10.0.0.2'],
    'hash:ip,port,net': ['10.0.0.1,tcp:80,203.0.113.0/25', '10.0.0.1,tcp:80,0.0.0.0/1', '10.0.0.1,tcp:80,10.0.0.9/32'],
    'bitmap:port': ['80', '65535'],
  }
  const six = (member: string) =>
    member
      .replace('203.0.113.0/25', 'fd00:203::/32')
      .replace('0.0.0.0/1', '8000::/1')
      .replace('10.0.0.9/32', 'fd00::9/128')
      .replaceAll(/10\.0\.0\.(\d)/g, 'fd00::$1')

  it.each([4, 6] as const)('has every set of family %s with its members, as ipset prints them', async (family) => {
    const sets = new Ipsets(family)
    try {
      expect(await sets.create(listSets(family), {})).toEqual([])
      const ids = listSets(family).flatMap(({ name, type }) =>
        (samples[type] as readonly string[]).map((member) => `member ${name} ${family === 6 ? six(member) : member}`),
      )
      expect(await sets.addMembers(ids, {})).toEqual([])
      expect(await sets.describeDrift({})).toBe('')
      const held = (await sets.read({})).map(({ id }) => id)
      expect(held.filter((id) => id.startsWith('member')).sort()).toEqual([...ids].sort())
      expect(held.filter((id) => id.startsWith('set'))).toHaveLength(19)
      const printed = space.exec('ipset', ['save'])
      const created = [...printed.matchAll(/^create (KUBE-\S+ \S+ .*?)(?: bucketsize \d+ initval \S+)? *$/gm)]
      expect(created.map((match) => match[1]).sort()).toEqual(kubeSets(family).sort())
      expect(printed).toMatch(
        family === 4 ? /^add KUBE-CLUSTER-IP 10\.0\.0\.1,tcp:80$/m : /^add KUBE-6-CLUSTER-IP fd00::1,tcp:80$/m,
      )
      expect(await sets.deleteMembers(ids, {})).toEqual([])
      expect((await sets.read({})).filter(({ kind }) => kind === 'member')).toEqual([])
      space.exec('ipset', [
        'add',
        family === 4 ? 'KUBE-IPVS-IPS' : 'KUBE-6-IPVS-IPS',
        family === 4 ? '1.1.1.1' : 'fd00::2',
      ])
      expect(await sets.describeDrift({})).toContain('has 1 members instead of 0')
      expect(await sets.destroy({})).toEqual([])
      expect(space.exec('ipset', ['list', '-n'])).toBe('')
    } finally {
      sets.close()
    }
  })
})

describe('kube-ipvs0', () => {
  it('gets addresses of both families once each, and loses them again', async () => {
    for (const [family, ip] of [
      [4, '172.30.0.41'],
      [6, 'fd00:172:30::41'],
    ] as const) {
      const addresses = new DeviceAddresses(family, () => undefined)
      try {
        await addresses.read({})
        await addresses.create({})
        await addresses.create({})
        expect((await addresses.bind([ip], {})).bound).toEqual([ip])
        expect((await addresses.bind([ip], {})).refused).toEqual([])
        expect(space.exec('ip', ['-br', 'addr', 'show', 'kube-ipvs0'])).toContain(`${ip}/${family === 4 ? 32 : 128}`)
        await addresses.read({})
        expect([...addresses.bound]).toEqual([ip])
        await addresses.unbind([ip], {})
        expect(space.exec('ip', ['-br', 'addr', 'show', 'kube-ipvs0'])).not.toContain(ip)
        await addresses.destroy({})
      } finally {
        addresses.close()
      }
    }
  })
})
