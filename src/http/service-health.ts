// Health check node ports: for each service with one, a tiny server that tells load balancers how many endpoints are on this node.

import { ProxyError } from '../lib/errors.ts'
import { type Family, hostPort } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { NodePortAddresses } from '../model/types.ts'
import { type Handler, type HttpListener, listen, reply } from './server.ts'

/** What one service wants: its health check node port and the count to show there. */
export interface ServiceCheck {
  readonly port: number
  readonly localEndpoints: number
}

export interface ServiceHealthOptions {
  /** Where node ports are served; asked at every sync, so that servers move with the node's addresses. */
  readonly addresses: (family: Family) => Pick<NodePortAddresses, 'all' | 'addresses'>
  /** Undefined when the health server is switched off; that counts as healthy. */
  readonly health: { healthy(): boolean } | undefined
  /** Called at every sync in which a service's port could not be opened; it is tried again at the next one. */
  readonly onBindFailure: (service: string, port: number, error: ProxyError) => void
  readonly log: Logger
}

interface Opened {
  readonly port: number
  readonly hosts: readonly string[]
  readonly listeners: readonly HttpListener[]
  localEndpoints: number
}

export class ServiceHealth {
  readonly #options: ServiceHealthOptions
  readonly #opened: Readonly<Record<Family, Map<string, Opened>>> = { 4: new Map(), 6: new Map() }
  #turn: Promise<void> = Promise.resolve()

  constructor(options: ServiceHealthOptions) {
    this.#options = options
  }

  /** Makes the servers of one family match: `services` is complete, keyed by `namespace/name`. */
  sync(services: ReadonlyMap<string, ServiceCheck>, family: Family): Promise<void> {
    const done = this.#turn.then(() => this.#reconcile(services, family))
    // The caller is told of a failure; the next sync starts afresh all the same.
    this.#turn = done.catch(() => {})
    return done
  }

  /** Addresses in use, for people and tests. */
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
    const gone: Opened[] = []
    for (const [service, server] of opened) {
      const wanted = services.get(service)
      if (wanted?.port === server.port && sameList(hosts, server.hosts)) {
        server.localEndpoints = wanted.localEndpoints
      } else {
        gone.push(server)
        opened.delete(service)
      }
    }
    // A port may pass from one service to another in one sync, so all closing comes first.
    await closeAll(gone.flatMap(({ listeners }) => listeners))
    for (const [service, wanted] of services) {
      if (!opened.has(service)) await this.#open(service, wanted, family)
    }
  }

  async #open(service: string, { port, localEndpoints }: ServiceCheck, family: Family): Promise<void> {
    const listeners: HttpListener[] = []
    const hosts = this.#hosts(family)
    const server: Opened = { port, hosts, listeners, localEndpoints }
    const handler = this.#answer(service, server)
    try {
      for (const host of hosts) {
        const address = hostPort(host, port)
        // tcp6 is v6-only: the other family has a server of its own on the same port.
        const network = family === 4 ? 'tcp4' : 'tcp6'
        listeners.push(await listen({ address, handler, network, log: this.#options.log, limits }))
      }
      this.#opened[family].set(service, server)
      this.#options.log.v(3, 'opened health check node port', { service, port, hosts })
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

  /** Any path, any method. The count is shown as it is even while the proxy itself is unhealthy. */
  #answer(service: string, server: Opened): Handler {
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

/** There may be thousands of these servers, each asked by a few load balancers. */
const limits = { maxConnections: 512, checkMs: 10_000 }

async function closeAll(listeners: readonly HttpListener[]): Promise<void> {
  await Promise.all(listeners.map((listener) => listener.close(0)))
}

const sameList = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((item, i) => item === b[i])
