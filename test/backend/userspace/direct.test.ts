// Serves on addresses of this machine through the real engine: without rights on loopback, and as on Windows with recorded commands.

import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createConnection, createServer } from 'node:net'
import { type NetworkInterfaceInfo, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import type { Backend, Held, Settings } from '../../../src/backend/backend.ts'
import type { RelayedFlow } from '../../../src/backend/relayed-flows.ts'
import { placeOnLoopback, userspaceUnprivileged } from '../../../src/backend/userspace/direct/unprivileged.ts'
import { userspaceOnWindows } from '../../../src/backend/userspace/windows/windows-backend.ts'
import { makeWindowsLeftovers } from '../../../src/backend/userspace/windows/windows-mode.ts'
import { Engine } from '../../../src/engine/engine.ts'
import { SyncJournal, type SyncReport } from '../../../src/engine/journal.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import type { Frontend, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, everyAddress, service, slice, tcp, view } from '../../support/builders.ts'
import { until } from '../../support/until.ts'

const settings: Pick<Settings, 'userspace'> = {
  userspace: { portRange: undefined, udpTimeoutMs: 250, bindAddress: '0.0.0.0' },
}

const opened: (() => unknown)[] = []
afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close()
})

/** A server that answers with its name. All pods have the address 127.0.0.2 here. */
async function pod(name: string, ip = '127.0.0.2'): Promise<number> {
  const server = createServer((socket) => socket.end(name)).listen(0, ip)
  await once(server, 'listening')
  opened.push(() => server.close())
  return (server.address() as AddressInfo).port
}

class DirectHarness {
  readonly engine: Engine
  #report: SyncReport | undefined
  #next = () => {}

  constructor(backend: Backend<Held>) {
    const journal = new SyncJournal({ log: silentLogger })
    journal.subscribe({
      report: (report) => {
        this.#report = report
        this.#next()
      },
    })
    const node = view({ nodePorts: everyAddress, ip: '127.0.0.1' })
    this.engine = new Engine({
      backend,
      families: [4],
      views: () => node,
      settings: { minSyncMs: 0, syncMs: 60_000 },
      clock: systemClock,
      log: silentLogger,
      journal,
    })
    opened.push(() => this.engine.stop())
  }

  async start(): Promise<void> {
    await this.engine.start()
    this.engine.store.services.synced()
    this.engine.store.slices.synced()
    await this.change(() => {})
  }

  async change(work: (store: Engine['store']) => void): Promise<SyncReport> {
    this.#report = undefined
    work(this.engine.store)
    this.engine.requestSync(4)
    for (let report = this.#report as SyncReport | undefined; ; report = this.#report) {
      if (report !== undefined) return report
      await new Promise<void>((resolve) => {
        this.#next = resolve
      })
    }
  }

  put(record: ServiceRecord, pods: SliceRecord): Promise<SyncReport> {
    return this.change((store) => {
      store.services.put(record.key, record)
      store.slices.put(pods.key, pods)
    })
  }
}

async function ask(address: string): Promise<string> {
  const [host, port] = address.split(':') as [string, string]
  const socket = createConnection({ host, port: Number(port) })
  opened.push(() => socket.destroy())
  const parts: Buffer[] = []
  for await (const part of socket) parts.push(part)
  return Buffer.concat(parts).toString()
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

describe('without rights', () => {
  it('serves a node port on 127.0.0.1, and a cluster IP on the loopback address with the same last three numbers', async () => {
    const harness = new DirectHarness(userspaceUnprivileged(settings))
    await harness.start()
    const port = await pod('a')
    const nodePort = await freePort()
    const pods = slice([endpoint('127.0.0.2', 'here')], { port })
    await harness.put(
      service({ type: 'NodePort', clusterIps: ['10.3.0.9'], ports: [tcp(8080, 'p80', nodePort)] }),
      pods,
    )
    expect(await ask(`127.0.0.1:${nodePort}`)).toBe('a')
    expect(await ask('127.3.0.9:8080')).toBe('a')
  })

  it('moves ports that only root may bind, and leaves out frontends that have no loopback address', () => {
    const frontend = (kind: Frontend['kind'], ip: string, port: number): Frontend => ({ kind, ip, port, allow: [] })
    const at = (place: Frontend, firstFree: number) => placeOnLoopback(firstFree)(place)
    expect(at(frontend('cluster-ip', '10.96.0.80', 80), 1024)).toMatchObject({ host: '127.96.0.80', ports: [10_080] })
    expect(at(frontend('cluster-ip', '10.96.0.80', 80), 0)).toMatchObject({ host: '127.96.0.80', ports: [80] })
    expect(at(frontend('external-ip', '1.2.3.4', 80), 1024)).toBeUndefined()
    expect(at(frontend('cluster-ip', 'fd00::1', 80), 1024)).toBeUndefined()
  })

  it('refuses without endpoints, serves again with endpoints, and closes when the service is deleted', async () => {
    const harness = new DirectHarness(userspaceUnprivileged(settings))
    await harness.start()
    const port = await pod('a')
    const record = service({ clusterIps: ['127.3.0.2'], ports: [tcp(8080)] })
    await harness.put(record, slice([], { port }))
    await expect(ask('127.3.0.2:8080')).rejects.toMatchObject({ code: 'ECONNREFUSED' })
    await harness.put(record, slice([endpoint('127.0.0.2', 'here')], { port }))
    expect(await ask('127.3.0.2:8080')).toBe('a')
    const { dropped } = await harness.change((store) => store.services.drop(record.key))
    expect(dropped).toBe(1)
    await expect(ask('127.3.0.2:8080')).rejects.toMatchObject({ code: 'ECONNREFUSED' })
  })

  it('reports which service cannot be served, and serves the others', async () => {
    const harness = new DirectHarness(userspaceUnprivileged(settings))
    await harness.start()
    const taken = createServer().listen(0, '127.0.0.1')
    await once(taken, 'listening')
    opened.push(() => taken.close())
    const nodePort = (taken.address() as AddressInfo).port
    const port = await pod('a')
    const pods = slice([endpoint('127.0.0.2', 'here')], { port })
    const record = service({ type: 'NodePort', clusterIps: ['127.3.0.3'], ports: [tcp(8080, 'p80', nodePort)] })
    const { ok, refused } = await harness.put(record, pods)
    expect(ok).toBe(true)
    expect(refused.map(({ service: name, id }) => [name, id])).toEqual([['ns1/svc1', `tcp *:${nodePort}`]])
    expect(await ask('127.3.0.3:8080')).toBe('a')
  })
})

describe('on Windows, with recorded commands', () => {
  const name = 'vEthernet (HNS Internal NIC)'
  const add = (ip: string) =>
    `netsh interface ipv4 add address name=${name} address=${ip} mask=255.255.255.255 store=active skipassource=true`
  const remove = (ip: string) => `netsh interface ipv4 delete address name=${name} address=${ip} store=active`

  /** `present` are addresses that an earlier process has left, `recorded` those in its file. */
  function windows(present: readonly string[] = [], recorded: readonly string[] = []) {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-record-'))
    opened.push(() => rmSync(folder, { recursive: true }))
    const recordFile = join(folder, 'state', 'service-addresses')
    if (recorded.length > 0) {
      mkdirSync(join(folder, 'state'))
      writeFileSync(recordFile, recorded.map((ip) => `+ ${ip} ${name}\n`).join(''))
    }
    const commands: string[] = []
    const addresses = new Set<string>(present)
    const machine = {
      environment: {},
      recordFile,
      refusal: '',
      run: async (program: string, args: readonly string[]) => {
        commands.push([program, ...args].join(' '))
        if (machine.refusal !== '') return { code: 1, stdout: `${machine.refusal}\r\n`, stderr: '' }
        const ip = /address=([^ ]+)/.exec(args.join(' '))?.[1] as string
        if (args.includes('add')) addresses.add(ip)
        else addresses.delete(ip)
        return { code: 0, stdout: '', stderr: '' }
      },
      interfaces: () => {
        const own = { address: '10.255.9.1', cidr: '10.255.9.1/24', family: 'IPv4' }
        const listed = [...addresses].map((address) => ({ address, cidr: `${address}/32`, family: 'IPv4' }))
        return { [name]: [own, ...listed] as NetworkInterfaceInfo[] }
      },
    }
    return { machine, commands, addresses }
  }

  const open = async (machine: ReturnType<typeof windows>['machine']): Promise<DirectHarness> => {
    const harness = new DirectHarness(userspaceOnWindows(settings, machine))
    await harness.start()
    return harness
  }

  it('adds each address once, listens on it, and removes it with its last socket', async () => {
    const { machine, commands } = windows()
    const harness = await open(machine)
    const port = await pod('w')
    const pods = (ports: readonly string[]) => ({
      ...slice([endpoint('127.0.0.2', 'here')]),
      ports: ports.map((portName) => ({ name: portName, protocol: 'tcp' as const, port })),
    })
    const two = service({ clusterIps: ['127.3.0.4'], ports: [tcp(8080, 'a'), tcp(8081, 'b')] })
    await harness.put(two, pods(['a', 'b']))
    expect(commands).toEqual([add('127.3.0.4')])
    expect(readFileSync(machine.recordFile, 'utf8')).toBe(`+ 127.3.0.4 ${name}\n`)
    expect(await ask('127.3.0.4:8080')).toBe('w')
    expect(await ask('127.3.0.4:8081')).toBe('w')
    await harness.put({ ...two, ports: [tcp(8081, 'b')] }, pods(['b']))
    expect(commands).toEqual([add('127.3.0.4')])
    await harness.change((store) => store.services.drop(two.key))
    expect(commands).toEqual([add('127.3.0.4'), remove('127.3.0.4')])
  })

  it.each([
    ['knows', ['127.3.0.5']],
    ['has lost', []],
  ])('takes over the address that an earlier process left, if it %s the record', async (_, recorded) => {
    const { machine, commands } = windows(['127.3.0.5'], recorded)
    // The service is there at the first sync, as after a restart.
    const harness = new DirectHarness(userspaceOnWindows(settings, machine))
    const port = await pod('w')
    const record = service({ clusterIps: ['127.3.0.5'], ports: [tcp(8080)] })
    const pods = slice([endpoint('127.0.0.2', 'here')], { port })
    harness.engine.store.services.put(record.key, record)
    harness.engine.store.slices.put(pods.key, pods)
    await harness.start()
    expect(await ask('127.3.0.5:8080')).toBe('w')
    expect(commands).toEqual([])
    await harness.change((store) => store.services.drop(record.key))
    expect(commands).toEqual([remove('127.3.0.5')])
  })

  it('removes the addresses of an earlier process that no service wants, and no others', async () => {
    const { machine, commands, addresses } = windows(['127.3.0.8', '127.3.0.9'], ['127.3.0.9', '127.3.0.10'])
    await open(machine)
    expect(commands).toEqual([remove('127.3.0.9')])
    expect([...addresses]).toEqual(['127.3.0.8'])
  })

  it('cleans up what the record names, and nothing else', async () => {
    const { machine, commands, addresses } = windows(['127.3.0.8', '127.3.0.9'], ['127.3.0.9', '127.3.0.10'])
    const leftovers = makeWindowsLeftovers(machine)
    expect((await leftovers.find()).map(({ what }) => what)).toEqual(['service address 127.3.0.9'])
    await leftovers.cleanup(silentLogger)
    expect(commands).toEqual([remove('127.3.0.9')])
    expect([...addresses]).toEqual(['127.3.0.8'])
    expect(existsSync(machine.recordFile)).toBe(false)
    expect(await leftovers.find()).toEqual([])
  })

  it('refuses the service whose address netsh does not add, with what netsh printed, and forgets the address', async () => {
    const { machine } = windows()
    const harness = await open(machine)
    machine.refusal = 'The object is invalid.'
    const port = await pod('w')
    const record = service({ clusterIps: ['127.3.0.11'], ports: [tcp(8080)] })
    const report = await harness.put(record, slice([endpoint('127.0.0.2', 'here')], { port }))
    expect(report.refused.map(({ error }) => error.message).sort()).toEqual([
      `netsh cannot add 127.3.0.11 to "${name}": The object is invalid.`,
      'the address 127.3.0.11 could not be added',
    ])
    expect(await makeWindowsLeftovers(machine).find()).toEqual([])
  })

  it('adds an address again that someone else has removed', async () => {
    const { machine, commands, addresses } = windows()
    const harness = await open(machine)
    const port = await pod('w')
    const record = service({ clusterIps: ['127.3.0.12'], ports: [tcp(8080)] })
    await harness.put(record, slice([endpoint('127.0.0.2', 'here')], { port }))
    addresses.delete('127.3.0.12')
    await harness.put({ ...record, ports: [tcp(8082)] }, slice([endpoint('127.0.0.2', 'here')], { port }))
    expect(commands).toEqual([add('127.3.0.12'), add('127.3.0.12')])
    expect(await ask('127.3.0.12:8082')).toBe('w')
  })

  it('keeps a client at its endpoint whichever address of the service it asks', async () => {
    const harness = await open(windows().machine)
    const nodePort = await freePort()
    const slices: SliceRecord[] = []
    // With as many pods, two addresses hardly choose the same one by chance.
    for (const name of 'abcdefgh') {
      const one = slice([endpoint('127.0.0.2', 'here')], { port: await pod(name) })
      slices.push({ ...one, key: `ns1/svc1-${name}` })
    }
    const record = service({
      type: 'NodePort',
      clusterIps: ['127.3.0.13'],
      ports: [tcp(8080, 'p80', nodePort)],
      affinitySeconds: 600,
    })
    await harness.change((store) => {
      store.services.put(record.key, record)
      for (const one of slices) store.slices.put(one.key, one)
    })
    const answers = new Set<string>()
    for (let i = 0; i < 4; i++) {
      answers.add(await ask('127.3.0.13:8080'))
      answers.add(await ask(`127.0.0.1:${nodePort}`))
    }
    expect(answers.size).toBe(1)
    await harness.change((store) => store.services.put(record.key, { ...record, affinitySeconds: 0 }))
    for (let i = 0; i < 8; i++) answers.add(await ask('127.3.0.13:8080'))
    expect(answers.size).toBe(8)
  })

  it('knows who talks to which endpoint, and how it ended, from its sockets alone', async () => {
    const { machine } = windows()
    const backend = userspaceOnWindows(settings, machine)
    const harness = new DirectHarness(backend)
    await harness.start()
    const nodePort = await freePort()
    const port = await pod('w')
    const record = service({ type: 'NodePort', clusterIps: ['127.3.0.14'], ports: [tcp(8080, 'p80', nodePort)] })
    await harness.put(record, slice([endpoint('127.0.0.2', 'here')], { port }))
    const ended: string[] = []
    const note = ({ verdict, port: name, local, localPort, endpoint: chosen }: RelayedFlow) =>
      void (verdict !== 'open' && ended.push(`${verdict} ${name} ${local}:${localPort} ${chosen}`))
    const stop = backend.relayed?.follow({ selects: () => true, note })
    await ask('127.3.0.14:8080')
    // Node ports are on all addresses: the client asked for one of them.
    await ask(`127.0.0.1:${nodePort}`)
    await until('both have ended', () => ended.length === 2)
    stop?.()
    const to = `127.0.0.2:${port}`
    expect(ended).toEqual([
      ...[`closed ns1/svc1:p80 127.3.0.14:8080 ${to}`, `closed ns1/svc1:p80 127.0.0.1:${nodePort} ${to}`],
    ])
    expect(backend.relayed?.findPlaces).toBeUndefined()
    expect([...(backend.relayed?.list() ?? [])]).toEqual([])
  })

  it('names the missing interface, and the variable that names another', async () => {
    const machine = { ...windows().machine, interfaces: () => ({}) }
    await expect(userspaceOnWindows(settings, machine).families()).rejects.toThrow(
      /"vEthernet .*INTERFACE_TO_ADD_SERVICE_IP/,
    )
  })

  it('refuses to bind to loopback', async () => {
    const onLoopback = { userspace: { ...settings.userspace, bindAddress: '127.0.0.1' } }
    await expect(userspaceOnWindows(onLoopback, windows().machine).families()).rejects.toThrow(/loopback/)
  })

  it('turns away clients outside the source ranges', async () => {
    const backend = userspaceOnWindows(settings, windows().machine)
    // No service may have a loopback address as its load balancer IP, and this test can listen on no other address.
    const onLoopback = (address: Frontend) => (address.ip === '192.0.2.7' ? { ...address, ip: '127.3.0.7' } : address)
    const harness = new DirectHarness({
      ...backend,
      plan: (port, node) => backend.plan({ ...port, frontends: port.frontends.map(onLoopback) }, node),
    })
    await harness.start()
    const port = await pod('w')
    const record = service({
      type: 'LoadBalancer',
      clusterIps: ['127.3.0.6'],
      loadBalancerIps: ['192.0.2.7'],
      sourceRanges: ['203.0.113.0/24'],
      ports: [tcp(8080)],
    })
    await harness.put(record, slice([endpoint('127.0.0.2', 'here')], { port }))
    expect(await ask('127.3.0.6:8080')).toBe('w')
    await expect(ask('127.3.0.7:8080')).rejects.toMatchObject({ code: 'ECONNRESET' })
  })
})
