// A node whose API server is on another machine of its network, and whole proxies on it that can be cut off from the API server.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Json } from '../scenarios/twins.ts'
import { bundleProgram } from '../support/bundle-program.ts'
import { shortWaits } from '../support/short-waits.ts'
import { until } from '../support/until.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand, single } from './web-service.ts'

/** The API server is on another machine of the node's network. */
export const apiIp = '192.168.0.100'
export const apiPort = 6443

let bundled: Promise<string> | undefined

function bundle(): Promise<string> {
  bundled ??= bundleProgram(join(import.meta.dirname, '../commands/sluice.worker.ts')).then(({ file, remove }) => {
    process.once('exit', remove)
    return file
  })
  return bundled
}

export const manifests = (...objects: Json[]): readonly Item[] =>
  objects.map((object, i) => expand(object, 500 + i)) as unknown as readonly Item[]

const node = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: nodeName },
  spec: {},
  status: { addresses: [{ type: 'InternalIP', address: nodeIp }] },
}

let marks = 0

export class ApiNode {
  readonly network: NodeNetwork
  readonly mode: string
  /** The API server that is asked now. */
  api: WatchedApi
  /** What all proxies logged. */
  log = ''
  #child: ChildProcess | undefined
  readonly #apis: WatchedApi[] = []

  private constructor(network: NodeNetwork, mode: string, api: WatchedApi) {
    this.network = network
    this.mode = mode
    this.api = api
    this.#apis.push(api)
  }

  /** Does not start a proxy. */
  static async create(mode: string, ip = apiIp): Promise<ApiNode> {
    const network = await NodeNetwork.create()
    if (mode !== 'nftables') await network.useFlavour('nft')
    network.node.configure(['addr add fd77::2/64 dev world nodad'])
    network.client.configure(['addr add fd77::100/64 dev eth0 nodad', 'addr add 192.168.0.101/24 dev eth0'])
    const api = await WatchedApi.listen(network.client, apiPort, ip)
    api.put(node, ...(single('ns1/first', '172.30.0.80') as unknown as Item[]))
    return new ApiNode(network, mode, api)
  }

  /** Starts a proxy that asks the API server at `url`, and waits until it serves. `hosts` is a file that it sees as /etc/hosts. */
  async start(url = this.api.url, hosts = '/etc/hosts'): Promise<void> {
    const flags = [
      ...[`--master=${url}`, `--proxy-mode=${this.mode}`, `--hostname-override=${nodeName}`],
      ...['--cluster-cidr=10.0.0.0/8', '--conntrack-max-per-core=0', '--conntrack-tcp-timeout-established=0'],
      ...['--conntrack-tcp-timeout-close-wait=0', '--metrics-bind-address=127.0.0.1:10249'],
      '--iptables-min-sync-period=0s',
    ]
    // `ip netns exec` gives the program mounts of its own.
    const mount = ['sh', '-c', `mount --bind ${hosts} /etc/hosts && exec "$@"`, 'sh']
    const program = [process.execPath, await bundle(), 'proxy', ...flags]
    const args = ['netns', 'exec', this.network.node.name, ...mount, ...program]
    const env = { ...process.env, ...shortWaits, SLUICE_ADMIN_SOCKET: 'off' }
    const child = spawn('ip', args, { stdio: ['ignore', 'ignore', 'pipe'], env })
    this.#child = child
    child.stderr.on('data', (chunk) => {
      this.log += chunk
    })
    await this.untilServed('172.30.0.80')
  }

  /** Ends the proxy. Its rules stay. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    const child = this.#child
    this.#child = undefined
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    const ended = once(child, 'exit')
    child.kill(signal)
    await ended
  }

  /** The API server goes on at another address, with all objects. The old one is closed by the caller, with `api.close()`. */
  async startApiAt(ip: string): Promise<WatchedApi> {
    const next = await WatchedApi.listen(this.network.client, apiPort, ip)
    next.put(...this.api.items())
    this.#apis.push(next)
    return next
  }

  async untilServed(ip: string, port = 80): Promise<void> {
    const isServed = async () => (podIps as readonly string[]).includes(await this.network.ask(ip, port, 500))
    await until(`${ip}:${port} is served`, isServed, { limitMs: 60_000 }).catch((error) => {
      throw new Error(`${error.message}\n${this.log.slice(-3000)}`)
    })
  }

  /** Cuts the connection, and shows that the proxy hears of a change afterwards. */
  async expectReconnect(): Promise<void> {
    this.api.cut()
    await this.expectProgress()
  }

  /** Shows that the proxy hears of a change. */
  async expectProgress(): Promise<void> {
    const ip = `172.30.1.${++marks}`
    this.api.put(...(single(`marks/m${marks}`, ip) as unknown as Item[]))
    await this.untilServed(ip)
  }

  async close(): Promise<void> {
    await this.stop('SIGKILL')
    for (const api of this.#apis) api.close()
    await this.network.close()
  }
}
