// Serves on addresses of this machine through the real engine: without rights on loopback, and as on Windows with recorded commands.

import { once } from 'node:events'
import { type AddressInfo, createConnection, createServer } from 'node:net'
import type { NetworkInterfaceInfo } from 'node:os'
import { afterEach, describe, expect, it } from 'vitest'
import type { Backend, Held, Settings } from '../../../src/backend/backend.ts'
import { placeOnLoopback, userspaceUnprivileged } from '../../../src/backend/userspace/direct/unprivileged.ts'
import { userspaceOnWindows } from '../../../src/backend/userspace/direct/windows.ts'
import { Engine } from '../../../src/engine/engine.ts'
import { SyncJournal, type SyncReport } from '../../../src/engine/journal.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import type { Frontend, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, everyAddress, service, slice, tcp, view } from '../../support/builders.ts'

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
    const at = (place: Frontend, firstFree: number) => placeOnLoopback(firstFree)(place, 4)
    expect(at(frontend('cluster-ip', '10.96.0.80', 80), 1024)).toEqual({ host: '127.96.0.80', ports: [10_080] })
    expect(at(frontend('cluster-ip', '10.96.0.80', 80), 0)).toEqual({ host: '127.96.0.80', ports: [80] })
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

  /** An address appears on the interface at the second look after netsh was asked for it. */
  function windows(present: readonly string[] = []) {
    const commands: string[] = []
    const addresses = new Map<string, string>(present.map((ip) => [ip, `${ip}/32`]))
    const pending: string[] = []
    const machine = {
      environment: {},
      run: async (program: string, args: readonly string[]) => {
        commands.push([program, ...args].join(' '))
        const ip = /address=([^ ]+)/.exec(args.join(' '))?.[1] as string
        if (args.includes('add')) pending.push(ip)
        else addresses.delete(ip)
        return { code: 0, stdout: '', stderr: '' }
      },
      interfaces: () => {
        const listed = [...addresses].map(([address, cidr]) => ({ address, cidr, family: 'IPv4' }))
        for (const ip of pending.splice(0)) addresses.set(ip, `${ip}/32`)
        return { [name]: listed as NetworkInterfaceInfo[] }
      },
    }
    return { machine, commands }
  }

  it('adds each address once, listens on it, and removes it with its last socket', async () => {
    const { machine, commands } = windows()
    const harness = new DirectHarness(userspaceOnWindows(settings, machine))
    await harness.start()
    const port = await pod('w')
    const pods = (ports: readonly string[]) => ({
      ...slice([endpoint('127.0.0.2', 'here')]),
      ports: ports.map((portName) => ({ name: portName, protocol: 'tcp' as const, port })),
    })
    const two = service({ clusterIps: ['127.3.0.4'], ports: [tcp(8080, 'a'), tcp(8081, 'b')] })
    await harness.put(two, pods(['a', 'b']))
    const add = `netsh interface ipv4 add address name=${name} address=127.3.0.4 mask=255.255.255.255 store=active`
    expect(commands).toEqual([add])
    expect(await ask('127.3.0.4:8080')).toBe('w')
    expect(await ask('127.3.0.4:8081')).toBe('w')
    await harness.put({ ...two, ports: [tcp(8081, 'b')] }, pods(['b']))
    expect(commands).toEqual([add])
    await harness.change((store) => store.services.drop(two.key))
    expect(commands).toEqual([add, `netsh interface ipv4 delete address name=${name} address=127.3.0.4`])
  })

  it('takes over the address that an earlier process left', async () => {
    const { machine, commands } = windows(['127.3.0.5'])
    const harness = new DirectHarness(userspaceOnWindows(settings, machine))
    await harness.start()
    const port = await pod('w')
    const record = service({ clusterIps: ['127.3.0.5'], ports: [tcp(8080)] })
    await harness.put(record, slice([endpoint('127.0.0.2', 'here')], { port }))
    expect(await ask('127.3.0.5:8080')).toBe('w')
    expect(commands).toEqual([])
    await harness.change((store) => store.services.drop(record.key))
    expect(commands).toEqual([`netsh interface ipv4 delete address name=${name} address=127.3.0.5`])
  })

  it('names the missing interface, and the variable that names another', async () => {
    const machine = { ...windows().machine, interfaces: () => ({}) }
    await expect(userspaceOnWindows(settings, machine).families()).rejects.toThrow(
      /"vEthernet .*INTERFACE_TO_ADD_SERVICE_IP/,
    )
  })

  it('turns away clients outside the source ranges', async () => {
    const { machine } = windows()
    const backend = userspaceOnWindows(settings, machine)
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
