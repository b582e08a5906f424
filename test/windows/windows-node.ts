// A node of the lab on which the real bundle runs under Wine, with an interface for services, an API server and the stand-in for netsh.

import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { windowsNodeBinary } from '../../packaging/inputs.ts'
import { type Server, serve } from '../lab/echo-servers.ts'
import { Lab } from '../lab/lab.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { expandObject, nodeName } from '../scenarios/expand.ts'
import { ipv6Twin } from '../scenarios/twins.ts'
import { until } from '../support/until.ts'
import { NetshServer } from './netsh-server.ts'
import { type Environment, WinePrefix } from './wine.ts'

/** Linux allows 15 characters and no blanks. */
export const serviceInterface = 'vEthernet(HNS)'
export const nodeIp = '192.168.0.2'
const markerIps = ['198.18.0.1', ipv6Twin('198.18.0.1')]
const apiPort = 8001
const repository = join(import.meta.dirname, '..', '..')

/** What the user sets for the proxy, and the test for the stand-in for netsh. */
const environmentOf = ({ port }: NetshServer): Environment => ({
  INTERFACE_TO_ADD_SERVICE_IP: serviceInterface,
  NETSH_PORT: String(port),
})

/** A path of Linux as programs in Wine see it. */
export const toWindowsPath = (path: string): string => `Z:${path.replaceAll('/', '\\')}`

/** The path of a program of the bundle. */
export const pathOf = (program: 'kube-proxy' | 'sluice'): string => toWindowsPath(join(repository, 'bin', program))

export interface Ran {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

export class WindowsNode {
  readonly lab: Lab
  readonly api: WatchedApi
  readonly netsh: NetshServer
  readonly prefix: WinePrefix
  readonly #markers: readonly Server[]
  readonly #running = new Set<WindowsProcess>()
  #turn = 0
  #runs = 0

  private constructor(lab: Lab, parts: { api: WatchedApi; netsh: NetshServer; prefix: WinePrefix; markers: Server[] }) {
    this.lab = lab
    this.api = parts.api
    this.netsh = parts.netsh
    this.prefix = parts.prefix
    this.#markers = parts.markers
  }

  /** `lab`: a new one with these pods, or one that the caller closes. */
  static async create(lab: Lab): Promise<WindowsNode> {
    const { node } = lab
    node.configure([
      `link add ${serviceInterface} type veth peer name hns-peer`,
      'link set hns-peer up',
      `link set ${serviceInterface} up`,
      `addr add 10.255.9.1/24 dev ${serviceInterface}`,
      `addr add fd00:255:9::1/64 dev ${serviceInterface} nodad`,
    ])
    await node.exec('sysctl', ['-w', 'net.ipv4.ip_local_port_range=61000 65535'])
    const api = await WatchedApi.listen(node, apiPort)
    const markers: Server[] = []
    for (const port of markerPorts) {
      for (const ip of [nodeIp, ipv6Twin(nodeIp)]) {
        markers.push(await serve(node, { ip, port, protocol: 'tcp' }, '', new Set()))
      }
    }
    const netsh = await NetshServer.listen(node)
    const prefix = WinePrefix.open(node.name, environmentOf(netsh))
    const self = new WindowsNode(lab, { api, netsh, prefix, markers })
    self.api.put(...self.#markerObjects(), makeNode())
    return self
  }

  /** Starts kube-proxy of the bundle. */
  startProxy(...args: readonly string[]): WindowsProcess {
    const usual = [`--master=${this.api.url}`, `--hostname-override=${nodeName}`, '--iptables-min-sync-period=10ms']
    return this.start('kube-proxy', [...usual, ...args])
  }

  start(program: 'kube-proxy' | 'sluice', args: readonly string[]): WindowsProcess {
    return this.startProgram([windowsNodeBinary(), pathOf(program), ...args])
  }

  /** Starts any program of Windows. */
  startProgram(command: readonly string[]): WindowsProcess {
    const process = new WindowsProcess(this.prefix, `output-${this.#runs++}`, command, environmentOf(this.netsh))
    this.#running.add(process)
    return process
  }

  /** Runs a command to its end. */
  run(program: 'kube-proxy' | 'sluice', ...args: readonly string[]): Promise<Ran> {
    return this.start(program, args).ended()
  }

  /** Resolves when the proxy has done everything that the API server has said so far, in both families. */
  async settle(): Promise<void> {
    // The second round begins after the sync that ended the first.
    for (let round = 0; round < 2; round++) {
      this.#turn++
      this.api.put(...this.#markerObjects())
      await Promise.all([nodeIp, ipv6Twin(nodeIp)].map((ip) => this.#reachMarker(ip)))
    }
  }

  /** The addresses of services on the interface, without those of the marker. */
  async serviceAddresses(): Promise<readonly string[]> {
    const { stdout } = await this.lab.node.exec('ip', ['-o', 'address', 'show', 'dev', serviceInterface])
    const all = [...stdout.matchAll(/inet6? (\S+)\/(?:32|128) /g)].map((match) => match[1] as string)
    return all.filter((ip) => !markerIps.includes(ip))
  }

  /** Ends all programs. The lab stays. */
  async close(): Promise<void> {
    for (const process of this.#running) process.kill()
    this.prefix.close()
    this.netsh.close()
    this.api.close()
    for (const server of this.#markers) await server.close()
  }

  async #reachMarker(ip: string): Promise<void> {
    const [endpointPort, nodePort] = this.#markerNow()
    const expected = `:${endpointPort}`
    const isReached = async () => {
      const flow = { at: 'node', from: ip, sourcePort: 0, to: ip, port: nodePort, protocol: 'tcp' } as const
      const reply = await this.lab.probe(flow, 2000)
      return reply.kind === 'reached' && reply.endpoint.endsWith(expected)
    }
    // Asking more often would take time from the proxy, which needs about 100 ms.
    await until(`the proxy serves the marker on ${ip}`, isReached, { everyMs: 40 })
  }

  #markerNow(): readonly [endpointPort: number, nodePort: number] {
    return [markerPorts[this.#turn % 2] as number, 32_501 + (this.#turn % 2)]
  }

  /** A service whose node port and endpoint port alternate: both were read and programmed when the new one answers. */
  #markerObjects(): readonly Item[] {
    const [endpointPort, nodePort] = this.#markerNow()
    const service = expandObject(
      { service: 'test/marker', type: 'NodePort', clusterIP: markerIps, ports: [`p 1/tcp ${nodePort}`] },
      9000,
      4,
    )
    const slice = (family: 4 | 6, ip: string) =>
      expandObject(
        { slice: `test/marker#${family}`, ports: [`p ${endpointPort}/tcp`], endpoints: [`${ip} local`] },
        9000 + family,
        family,
      )
    return [service, slice(4, nodeIp), slice(6, ipv6Twin(nodeIp))]
  }
}

const markerPorts = [9001, 9002] as const

export const makeNode = (zone = 'zone-a', primary: readonly string[] = [nodeIp, ipv6Twin(nodeIp)]): Item => ({
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: nodeName, labels: { 'topology.kubernetes.io/zone': zone } } as Item['metadata'],
  ...{ status: { addresses: primary.map((address) => ({ type: 'InternalIP', address })) } },
})

export const makeKubeconfig = (server: string, tokenFile: string) => ({
  apiVersion: 'v1',
  kind: 'Config',
  'current-context': 'c',
  contexts: [{ name: 'c', context: { cluster: 'c', user: 'u' } }],
  clusters: [{ name: 'c', cluster: { server } }],
  users: [{ name: 'u', user: { tokenFile } }],
})

/** A program of Windows. Its output goes to files on its own C: drive. */
export class WindowsProcess {
  readonly #child: ChildProcess
  readonly #exit: Promise<number | null>
  readonly #out: string
  readonly #err: string

  constructor(prefix: WinePrefix, name: string, command: readonly string[], env: Environment) {
    const file = (suffix: string) => join(prefix.path, 'drive_c', `${name}.${suffix}`)
    this.#out = file('out')
    this.#err = file('err')
    const output = { stdout: openSync(this.#out, 'w'), stderr: openSync(this.#err, 'w') }
    this.#child = prefix.start(command, output, env)
    closeSync(output.stdout)
    closeSync(output.stderr)
    this.#exit = once(this.#child, 'exit').then(([code]) => code as number | null)
  }

  get log(): string {
    return readFileSync(this.#err, 'utf8')
  }

  /** Wine turns SIGINT into Ctrl-C. */
  pressCtrlC(): void {
    this.#child.kill('SIGINT')
  }

  kill(): void {
    this.#child.kill('SIGKILL')
  }

  async ended(): Promise<Ran> {
    const code = await this.#exit
    return { code, stdout: readFileSync(this.#out, 'utf8'), stderr: this.log }
  }
}

/** Makes a lab and a node in it. */
export async function createWindowsNode(pods: readonly string[]): Promise<WindowsNode> {
  const lab = await Lab.create(pods)
  try {
    await lab.arrange({ localPods: pods, remotePods: [], nodeExtras: [], bridged: false })
    return await WindowsNode.create(lab)
  } catch (error) {
    await lab.close()
    throw error
  }
}
