// The target of userspace mode where nothing redirects traffic: listens on the services' own addresses. Needs no rights by itself.

import { ProxyError } from '../../../lib/errors.ts'
import { hostPort } from '../../../lib/ip.ts'
import {
  type Applied,
  type Changes,
  compareDigests,
  type Held,
  type KernelCheck,
  type OpenContext,
  type RefusedEntry,
  type Target,
} from '../../backend.ts'
import { Balancer } from '../../relay/balancer.ts'
import type { DialReports } from '../../relay/dial-reports.ts'
import type { FlowReporter, FlowReports } from '../../relay/flow-reports.ts'
import type { DescriptorBudget, Relay, RelayOptions, ShedReason } from '../../relay/relay.ts'
import { relayTcp } from '../../relay/tcp.ts'
import { relayUdp } from '../../relay/udp.ts'
import { listOwnAddresses } from '../listen-address.ts'
import { toListenError } from '../relay-listeners.ts'
import { type DirectEndpoints, type DirectEntry, type DirectSocket, isAllowed, isOnNode } from './direct-plan.ts'

export interface DirectTargetOptions {
  readonly context: OpenContext
  readonly udpIdleMs: number
  readonly budget: DescriptorBudget
  readonly dials?: DialReports
  readonly flows?: FlowReports
  /** Called when a socket cannot listen. If it resolves true, the socket tries again. */
  readonly retryListen?: (host: string, error: unknown, signal: AbortSignal) => Promise<boolean>
}

interface OpenSocket {
  readonly relay: Relay
  readonly host: string
  socket: DirectSocket
  digest: string
}

export class DirectTarget implements Target<DirectEntry> {
  readonly #options: DirectTargetOptions
  readonly #open = new Map<string, OpenSocket>()
  /** By service port and reach: a client keeps its endpoint whichever address of the service it asks. */
  readonly #balancers = new Map<string, Balancer>()
  readonly #shed: Record<ShedReason, number> = { files: 0, dial: 0, ports: 0, flows: 0 }
  #ownAddresses: ReadonlySet<string> = new Set()

  constructor(options: DirectTargetOptions) {
    this.#options = options
  }

  async observe(): Promise<readonly Held[]> {
    return [...this.#open].map(([id, { digest }]) => ({ id, kind: 'socket', digest }))
  }

  async apply({ put, drop }: Changes<DirectEntry>, signal: AbortSignal): Promise<Applied> {
    this.#ownAddresses = new Set(listOwnAddresses())
    for (const { id } of drop) await this.#close(id)
    if (drop.length > 0) this.#forgetBalancers()
    const refused: RefusedEntry[] = []
    for (const entry of put) {
      try {
        await this.#put(entry, signal)
      } catch (error) {
        signal.throwIfAborted()
        refused.push({ id: entry.id, error: toListenError(error) })
      }
    }
    return { refused, figures: this.#figures() }
  }

  /** No other process can change our sockets. */
  drifted(): boolean {
    return false
  }

  async close(): Promise<void> {
    for (const { relay } of this.#open.values()) await relay.close()
    this.#open.clear()
  }

  async #put({ id, digest, socket }: DirectEntry, signal: AbortSignal): Promise<void> {
    let open = this.#open.get(id)
    if (open !== undefined && (open.host !== socket.host || open.socket.protocol !== socket.protocol)) {
      await this.#close(id)
      open = undefined
    }
    open ??= await this.#listen(id, socket, signal)
    open.socket = socket
    open.digest = digest
    const reached = [socket.forNode, ...(socket.forOthers === undefined ? [] : [socket.forOthers])]
    for (const { reach, endpoints } of reached) {
      this.#findBalancer(socket, reach).update(endpoints, socket.affinitySeconds, socket.choice)
    }
    open.relay.keepOnly(new Set([...reached.flatMap(({ endpoints }) => endpoints), ...socket.serving]))
  }

  #findBalancer(socket: DirectSocket, reach: DirectEndpoints['reach']): Balancer {
    const key = nameBalancer(socket, reach)
    const { clock } = this.#options.context
    const balancer = this.#balancers.get(key) ?? new Balancer(Math.random, () => clock.monotonic())
    this.#balancers.set(key, balancer)
    return balancer
  }

  /** Forgets the sessions of service ports that have no socket any more. */
  #forgetBalancers(): void {
    const sockets = [...this.#open.values()].map(({ socket }) => socket)
    const used = new Set(sockets.flatMap((socket) => reaches.map((reach) => nameBalancer(socket, reach))))
    for (const key of this.#balancers.keys()) if (!used.has(key)) this.#balancers.delete(key)
  }

  async #listen(id: string, socket: DirectSocket, signal: AbortSignal): Promise<OpenSocket> {
    const { context } = this.#options
    if (socket.protocol === 'sctp') {
      throw new ProxyError('sctp', 'SCTP cannot be relayed in userspace mode: use another mode')
    }
    const parts = { host: socket.host, socket, digest: '' }
    const open: OpenSocket = { ...parts, relay: await this.#openPatiently(id, parts, signal) }
    this.#open.set(id, open)
    const address = hostPort(socket.host, open.relay.port)
    context.log.info('Listening', { service: socket.name, address, protocol: socket.protocol })
    return open
  }

  async #openPatiently(id: string, parts: Omit<OpenSocket, 'relay'>, signal: AbortSignal): Promise<Relay> {
    for (;;) {
      try {
        return await this.#openRelay(id, parts)
      } catch (error) {
        if ((await this.#options.retryListen?.(parts.host, error, signal)) !== true) throw error
      }
    }
  }

  /** Tries the ports in turn. */
  async #openRelay(id: string, parts: Omit<OpenSocket, 'relay'>): Promise<Relay> {
    const { protocol, ports, name } = parts.socket
    const { udpIdleMs: idleMs } = this.#options
    const options = this.#relayOptions(id, parts)
    for (const [i, port] of ports.entries()) {
      try {
        return await (protocol === 'udp' ? relayUdp({ ...options, port, idleMs }) : relayTcp({ ...options, port }))
      } catch (error) {
        if (i === ports.length - 1) throw error
      }
    }
    throw new ProxyError('listen', `${name} has no port to listen on`)
  }

  #relayOptions(id: string, parts: Omit<OpenSocket, 'relay'>): Omit<RelayOptions, 'port'> {
    const { context, budget, dials } = this.#options
    const current = () => this.#open.get(id)?.socket ?? parts.socket
    const isNodeClient = (client: string) => isOnNode(client, current().pods, this.#ownAddresses)
    return {
      host: parts.host,
      balancer: (client) => {
        const { forNode, forOthers = forNode } = current()
        return this.#findBalancer(current(), (isNodeClient(client) ? forNode : forOthers).reach)
      },
      admits: (client) =>
        isAllowed(client, current().allow) && (current().forOthers !== undefined || isNodeClient(client)),
      log: context.log,
      budget,
      dials,
      flows: this.#makeReporter(parts.socket, () => current().name),
      onShed: (why) => {
        this.#shed[why]++
      },
    }
  }

  #makeReporter({ protocol }: DirectSocket, port: () => string): FlowReporter | undefined {
    const { flows: reports, context } = this.#options
    if (reports === undefined || protocol === 'sctp') return undefined
    return { reports, origin: { family: context.family, protocol, port } }
  }

  async #close(id: string): Promise<void> {
    const open = this.#open.get(id)
    if (open === undefined) return
    this.#open.delete(id)
    await open.relay.close()
  }

  #figures(): Readonly<Record<string, number>> {
    const active = { tcp: 0, udp: 0, sctp: 0 }
    for (const { socket, relay } of this.#open.values()) active[socket.protocol] += relay.active
    const shed = Object.entries(this.#shed).map(([why, count]) => [`relay_shed{${why}}`, count] as const)
    return {
      'relay_active{tcp}': active.tcp,
      'relay_active{udp}': active.udp,
      relay_listeners: this.#open.size,
      ...Object.fromEntries(shed),
    }
  }
}

const reaches = ['cluster', 'local'] as const

const nameBalancer = ({ protocol, name }: DirectSocket, reach: DirectEndpoints['reach']): string =>
  `${protocol} ${name} ${reach}`

/** The sockets that the target of the running proxy has open. No other process can change them. */
export async function checkSockets(target: DirectTarget | undefined): Promise<KernelCheck> {
  const byId = new Map((await target?.observe())?.map((held) => [held.id, held]))
  return { presence: (part) => compareDigests(part, byId.get(part.id)) }
}
