// The real kube-apiserver and etcd of bench/fleet.ts: fills it with objects, changes them, and reads what the API server pays.

import { readFileSync } from 'node:fs'
import { setTimeout as wait } from 'node:timers/promises'
import { Client } from '../src/kube/client.ts'
import { loadConnection } from '../src/kube/kubeconfig.ts'
import { silentLogger as log } from '../src/lib/log.ts'
import { systemClock as clock } from '../src/lib/time.ts'
import { type Cluster, startCluster } from '../test/e2e/cluster.ts'
import { until } from '../test/support/until.ts'
import { largeService, largeSlices, namespace, rollingSlice, service, slice } from './fleet-objects.ts'
import { cpuMs, rssMb } from './process-cost.ts'

/** The address of the API server in its namespace, which clients in other namespaces reach. */
export const serverAddress = '10.200.0.1'
const account = { namespace: 'kube-system', name: 'kube-proxy' }
const parallelWrites = 16

export interface Sample {
  readonly at: number
  readonly cpuMs: number
  /** Bytes that the process has written: to clients, and some to etcd and to its log. */
  readonly bytes: number
  readonly rssMb: number
}

export interface RequestCounts {
  /** Classic lists of all four kinds, of the clients alone. */
  readonly lists: number
  /** Snapshots that were sent as a part of a watch. */
  readonly streamedLists: number
  /** Watches that are open now. */
  readonly watches: number
  /** Watches that were refused because the version is too old. */
  readonly expired: number
  /** When the process that answered was started, in Unix seconds. */
  readonly started: number
}

const watched = ['services', 'endpointslices', 'nodes', 'servicecidrs']

export class FleetCluster {
  readonly #cluster: Cluster
  readonly #admin: Client

  private constructor(cluster: Cluster) {
    this.#cluster = cluster
    const connection = loadConnection({ kubeconfig: cluster.kubeconfig, master: '', env: {} })
    this.#admin = new Client(connection, { qps: -1, burst: 1, userAgent: 'fleet-admin', log, clock })
  }

  static async start(binaries: string): Promise<FleetCluster> {
    const flags = [
      '--bind-address=0.0.0.0',
      `--advertise-address=${serverAddress}`,
      '--permit-port-sharing',
      '--audit-log-path=', // the log would be a part of the cost
    ]
    return new FleetCluster(await startCluster({ binaries, flags, addresses: [serverAddress] }))
  }

  get directory(): string {
    return this.#cluster.directory
  }

  get server(): string {
    return `https://${serverAddress}:${this.#cluster.port}`
  }

  get authority(): string {
    return this.#cluster.authority.certificate
  }

  /** Creates services with their slices, the account of the proxies, and one Node per simulated proxy. */
  async fill(services: number, nodes: number): Promise<void> {
    await this.#create('/api/v1/namespaces', { metadata: { name: namespace } })
    await this.#create(`/api/v1/namespaces/${account.namespace}/serviceaccounts`, { metadata: { name: account.name } })
    await this.#create('/apis/rbac.authorization.k8s.io/v1/clusterrolebindings', {
      metadata: { name: 'fleet' },
      subjects: [{ kind: 'ServiceAccount', ...account }],
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'system:node-proxier' },
    })
    // The allocator of cluster IPs starts some time after the API server is ready.
    await until('the first Service', () => this.#create(servicePath, largeService()).then(() => true), { everyMs: 500 })
    for (const one of largeSlices()) await this.#create(slicePath, one)
    const numbers = Array.from({ length: services }, (_, i) => i)
    await inParallel(numbers, async (i) => {
      await this.#create(servicePath, service(i))
      await this.#create(slicePath, slice(i, 0))
    })
    await inParallel(Array.from({ length: nodes }), (_, i) => this.addNode(`node-${i}`))
  }

  /** A simulated proxy needs no address; kube-proxy waits for one. */
  async addNode(name: string, address?: string): Promise<void> {
    const node = { apiVersion: 'v1', kind: 'Node', metadata: { name, labels: {} } }
    await this.#create('/api/v1/nodes', node)
    if (address === undefined) return
    const status = { addresses: [{ type: 'InternalIP', address }] }
    await this.#admin.request({ method: 'PUT', path: `/api/v1/nodes/${name}/status`, body: { ...node, status } })
  }

  /** Each node has a token of its own, as in a real cluster, so that the API server checks each of them. */
  async mintTokens(count: number): Promise<readonly string[]> {
    const path = `/api/v1/namespaces/${account.namespace}/serviceaccounts/${account.name}/token`
    const body = { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: { expirationSeconds: 7_200 } }
    return inParallel(Array.from({ length: count }), async () => {
      const { json } = await this.#admin.request({ method: 'POST', path, body })
      return (json as { status: { token: string } }).status.token
    })
  }

  /** Moves one endpoint of one small Service. */
  changeEndpoint(i: number, turn: number): Promise<void> {
    return this.#replace(slice(i, turn))
  }

  /** Does one write of a rolling update of the large Service. */
  roll(write: number, round: number): Promise<void> {
    return this.#replace(rollingSlice(write, round))
  }

  /** Adds what all API servers have used so far. */
  sample(): Sample {
    const pids = this.#cluster.apiServerPids()
    const sum = (read: (pid: number) => number) => pids.reduce((all, pid) => all + read(pid), 0)
    return { at: performance.now(), cpuMs: sum(cpuMs), bytes: sum(writtenBytes), rssMb: sum(rssMb) }
  }

  /** Asks the API server itself; of several, one of them. */
  async countRequests(): Promise<RequestCounts> {
    const text = await this.#cluster.kubectl(['get', '--raw', '/metrics'])
    const ofWatched = (line: string) => watched.some((resource) => line.includes(`resource="${resource}"`))
    const add = (pattern: RegExp) =>
      text
        .split('\n')
        .filter((line) => pattern.test(line) && ofWatched(line))
        .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0)
    return {
      lists: add(/^apiserver_request_total\{.*verb="LIST"/),
      streamedLists: add(/^apiserver_watch_list_duration_seconds_count/),
      watches: add(/^apiserver_longrunning_requests\{.*verb="WATCH"/),
      expired: add(/^apiserver_request_total\{code="410".*verb="WATCH"/),
      started: Number(/^process_start_time_seconds (\S+)/m.exec(text)?.[1]),
    }
  }

  /** Asks the API server that was started last: of two on one port, the kernel chooses one for each connection. */
  async countNewest(): Promise<RequestCounts> {
    const newest = this.#cluster.starts.at(-1)?.from ?? 0
    return until('an answer of the newest API server', async () => {
      const counts = await this.countRequests()
      // The kernel counts the start in ticks since boot.
      return counts.started * 1000 > newest - 1_000 && counts
    })
  }

  newestCpuMs(): number {
    return cpuMs(this.#cluster.apiServerPids().at(-1) as number)
  }

  kill(): Promise<void> {
    return this.#cluster.killApiServer()
  }

  startApiServer(): Promise<void> {
    return this.#cluster.startApiServer()
  }

  stop(): Promise<void> {
    this.#admin.close()
    return this.#cluster.stop()
  }

  async #create(path: string, body: object): Promise<void> {
    await this.#admin.request({ method: 'POST', path, body })
  }

  async #replace(object: { readonly metadata: { readonly name: string } }): Promise<void> {
    await this.#admin.request({ method: 'PUT', path: `${slicePath}/${object.metadata.name}`, body: object })
  }
}

const servicePath = `/api/v1/namespaces/${namespace}/services`
const slicePath = `/apis/discovery.k8s.io/v1/namespaces/${namespace}/endpointslices`

/** What write() has accepted: the kernel counts it for sockets as well. */
function writtenBytes(pid: number): number {
  return Number(/^wchar: (\d+)/m.exec(readFileSync(`/proc/${pid}/io`, 'utf8'))?.[1] ?? 0)
}

async function inParallel<T, R>(items: readonly T[], run: (item: T, index: number) => Promise<R>): Promise<R[]> {
  const results: R[] = []
  let next = 0
  const work = async () => {
    while (next < items.length) {
      const index = next++
      results[index] = await run(items[index] as T, index)
    }
  }
  await Promise.all(Array.from({ length: parallelWrites }, work))
  return results
}

/** Does `count` writes at a steady pace. */
export async function writeSteadily(
  count: number,
  perSecond: number,
  write: (n: number) => Promise<void>,
): Promise<void> {
  const start = performance.now()
  for (let n = 0; n < count; n++) {
    await wait(Math.max(0, start + (n * 1000) / perSecond - performance.now()))
    await write(n)
  }
}
