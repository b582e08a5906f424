// Serves the health check node ports: for each service that has one, a small server that reports how many endpoints are on this node.

import { ProxyError } from '../lib/errors.ts'
import { type Family, hostPort } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { nextTurn } from '../lib/time.ts'
import type { NodePortAddresses } from '../model/types.ts'
import { reply } from './routing.ts'
import { type Handler, type HttpListener, healthLimits, listen, makeConnectionLimit } from './server.ts'

/** The health check node port of a service and the number of endpoints to report there. */
export interface ServiceCheck {
  readonly port: number
  readonly localEndpoints: number
}

export interface ServiceHealthOptions {
  /** Returns where node ports are served. Called at every sync, so that servers follow the node's addresses. */
  readonly addresses: (family: Family) => Pick<NodePortAddresses, 'all' | 'addresses'>
  /** Undefined if the health server is switched off, which counts as healthy. */
  readonly health: { healthy(): boolean } | undefined
  /** Called at every sync in which the port of a service cannot be opened. The next sync tries again. */
  readonly onBindFailure: (service: string, port: number, error: ProxyError) => void
  readonly log: Logger
}

interface OpenedPort {
  readonly port: number
  readonly hosts: readonly string[]
  readonly listeners: readonly HttpListener[]
  localEndpoints: number
}

export class ServiceHealth {
  readonly #options: ServiceHealthOptions
  readonly #opened: Readonly<Record<Family, Map<string, OpenedPort>>> = { 4: new Map(), 6: new Map() }
  readonly #connections = makeConnectionLimit(maxConnections)
  /** Settles when the last sync has ended; syncs run one after the other. */
  #lastSync: Promise<void> = Promise.resolve()

  constructor(options: ServiceHealthOptions) {
    this.#options = options
  }

  /** Opens and closes servers until those of one family match `services`, which is complete and keyed by `namespace/name`. */
  sync(services: ReadonlyMap<string, ServiceCheck>, family: Family): Promise<void> {
    const done = this.#lastSync.then(() => this.#reconcile(services, family))
    // The caller gets the failure; it does not keep the next sync from running.
    this.#lastSync = done.catch(() => {})
    return done
  }

  /** Returns the addresses in use, for people and tests. */
  listening(): readonly string[] {
    const all = [...this.#opened[4].values(), ...this.#opened[6].values()]
    return all.flatMap(({ listeners }) => listeners.map(({ address }) => address)).sort()
  }

  async close(): Promise<void> {
    await this.sync(new Map(), 4)
    await this.sync(new Map(), 6)
  }

  async #reconcile(services: ReadonlyMap<string, ServiceCheck>, family: Family): Promise<void> {
    const opened = this.#opened[family]
    const hosts = this.#hosts(family)
    const stale: OpenedPort[] = []
    for (const [service, server] of opened) {
      const wanted = services.get(service)
      if (wanted?.port === server.port && sameList(hosts, server.hosts)) {
        server.localEndpoints = wanted.localEndpoints
      } else {
        stale.push(server)
        opened.delete(service)
      }
    }
    // Within one sync a port may move from one service to another, so all closing comes first.
    await closeAll(stale.flatMap(({ listeners }) => listeners))
    const missing = [...services].filter(([service]) => !opened.has(service))
    await runInGroups(missing, ([service, wanted]) => this.#open(service, wanted, family))
  }

  async #open(service: string, { port, localEndpoints }: ServiceCheck, family: Family): Promise<void> {
    const listeners: HttpListener[] = []
    const hosts = this.#hosts(family)
    const server: OpenedPort = { port, hosts, listeners, localEndpoints }
    const handler = this.#answer(service, server)
    try {
      for (const host of hosts) {
        const address = hostPort(host, port)
        // tcp6 serves only IPv6: IPv4 has its own server on the same port.
        const network = family === 4 ? 'tcp4' : 'tcp6'
        const { log } = this.#options
        listeners.push(
          await listen({ address, handler, network, log, limits: healthLimits, connections: this.#connections }),
        )
      }
      this.#opened[family].set(service, server)
      this.#options.log.v(3, 'Opened health check node port', { service, port, hosts })
    } catch (error) {
      await closeAll(listeners)
      if (!(error instanceof ProxyError)) throw error
      this.#options.onBindFailure(service, port, error)
    }
  }

  #hosts(family: Family): readonly string[] {
    const { all, addresses } = this.#options.addresses(family)
    return all ? [family === 4 ? '0.0.0.0' : '::'] : addresses
  }

  /** Answers any path and method. Reports the count even while the proxy itself is unhealthy. */
  #answer(service: string, server: OpenedPort): Handler {
    const slash = service.indexOf('/')
    const name = { namespace: service.slice(0, slash), name: service.slice(slash + 1) }
    return (_request, response) => {
      const healthy = this.#options.health?.healthy() ?? true
      reply(response, {
        status: server.localEndpoints !== 0 && healthy ? 200 : 503,
        type: 'application/json',
        headers: { 'X-Load-Balancing-Endpoint-Weight': String(server.localEndpoints) },
        body: JSON.stringify(
          { service: name, localEndpoints: server.localEndpoints, serviceProxyHealthy: healthy },
          undefined,
          '\t',
        ),
      })
    }
  }
}

/** All these servers share one limit, so that many ports do not multiply it. Each has a few load balancers as clients. */
const maxConnections = 2048

const closeAll = (listeners: readonly HttpListener[]): Promise<void> =>
  runInGroups(listeners, (listener) => listener.close(0))

/** Sockets that are opened or closed in one turn of the event loop: some milliseconds of work. */
const groupSize = 25

/** Runs the work of a group in parallel, and other tasks of the process between groups: there may be thousands of ports. */
async function runInGroups<T>(items: readonly T[], run: (item: T) => Promise<void>): Promise<void> {
  for (let i = 0; i < items.length; i += groupSize) {
    if (i > 0) await nextTurn()
    await Promise.all(items.slice(i, i + groupSize).map(run))
  }
}

const sameList = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((item, i) => item === b[i])
