// Listens on services' own addresses: the target of userspace mode where nothing redirects to it. Needs no rights by itself.

import { networkInterfaces } from 'node:os'
import { ProxyError } from '../../../lib/errors.ts'
import { canonicalIp, hostPort } from '../../../lib/ip.ts'
import type { Applied, Changes, Held, OpenContext, RefusedEntry, Target } from '../../backend.ts'
import { Balancer } from '../../relay/balancer.ts'
import type { DescriptorBudget, Relay, RelayOptions, ShedReason } from '../../relay/relay.ts'
import { relayTcp } from '../../relay/tcp.ts'
import { relayUdp } from '../../relay/udp.ts'
import { asProxyError } from '../relay-listeners.ts'
import { admits, type DirectEntry, type DirectSocket, isNear } from './direct-plan.ts'

/** Gives this machine the address of a service, and takes it away again. */
export interface AddressHolder {
  ensure(ip: string, signal: AbortSignal): Promise<void>
  release(ip: string): Promise<void>
}

export interface DirectTargetOptions {
  readonly context: OpenContext
  readonly udpIdleMs: number
  readonly budget: DescriptorBudget
  /** Undefined: only addresses that are there. */
  readonly addresses?: AddressHolder
}

interface Open {
  readonly relay: Relay
  readonly host: string
  readonly near: Balancer
  readonly far: Balancer
  socket: DirectSocket
  digest: string
}

export class DirectTarget implements Target<DirectEntry> {
  readonly #options: DirectTargetOptions
  readonly #open = new Map<string, Open>()
  readonly #shed: Record<ShedReason, number> = { files: 0, dial: 0, ports: 0, flows: 0 }
  #own: ReadonlySet<string> = new Set()

  constructor(options: DirectTargetOptions) {
    this.#options = options
  }

  async observe(): Promise<readonly Held[]> {
    return [...this.#open].map(([id, { digest }]) => ({ id, kind: 'socket', digest }))
  }

  async apply({ put, drop }: Changes<DirectEntry>, signal: AbortSignal): Promise<Applied> {
    this.#own = ownAddresses()
    for (const { id } of drop) await this.#close(id)
    const refused: RefusedEntry[] = []
    for (const entry of put) {
      try {
        await this.#put(entry, signal)
      } catch (error) {
        signal.throwIfAborted()
        refused.push({ id: entry.id, error: asProxyError(error) })
      }
    }
    return { refused, figures: this.#figures() }
  }

  /** Nobody else can have our sockets. */
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
    open.near.update(socket.near, socket.affinitySeconds)
    open.far.update(socket.far ?? [], socket.affinitySeconds)
    open.relay.keepOnly(new Set([...socket.near, ...(socket.far ?? []), ...socket.serving]))
  }

  async #listen(id: string, socket: DirectSocket, signal: AbortSignal): Promise<Open> {
    const { context, addresses } = this.#options
    if (socket.protocol === 'sctp') {
      throw new ProxyError('sctp', 'SCTP cannot be relayed in userspace mode: use another mode')
    }
    await addresses?.ensure(socket.host, signal)
    const balancer = () => new Balancer(Math.random, () => context.clock.monotonic())
    const parts = { near: balancer(), far: balancer(), host: socket.host, socket, digest: '' }
    try {
      const open: Open = { ...parts, relay: await this.#relay(id, socket, parts) }
      this.#open.set(id, open)
      const address = hostPort(socket.host, open.relay.port)
      context.log.info('listening', { service: socket.name, address, protocol: socket.protocol })
      return open
    } catch (error) {
      await this.#release(socket.host)
      throw error
    }
  }

  async #relay(id: string, { protocol, ports }: DirectSocket, parts: Omit<Open, 'relay'>): Promise<Relay> {
    const { context, budget, udpIdleMs: idleMs } = this.#options
    const current = () => this.#open.get(id)?.socket ?? parts.socket
    const near = (client: string) => isNear(client, current().pods, this.#own)
    const options: Omit<RelayOptions, 'port'> = {
      host: parts.host,
      balancer: (client) => (near(client) ? parts.near : parts.far),
      admits: (client) => admits(client, current().allow) && (current().far !== undefined || near(client)),
      log: context.log,
      budget,
      onShed: (why) => {
        this.#shed[why]++
      },
    }
    for (const [i, port] of ports.entries()) {
      try {
        return await (protocol === 'udp' ? relayUdp({ ...options, port, idleMs }) : relayTcp({ ...options, port }))
      } catch (error) {
        if (i === ports.length - 1) throw error
      }
    }
    throw new ProxyError('listen', `${parts.socket.name} has no port to listen on`)
  }

  async #close(id: string): Promise<void> {
    const open = this.#open.get(id)
    if (open === undefined) return
    this.#open.delete(id)
    await open.relay.close()
    await this.#release(open.host)
  }

  async #release(host: string): Promise<void> {
    if ([...this.#open.values()].some((open) => open.host === host)) return
    await this.#options.addresses?.release(host)
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

export function ownAddresses(): ReadonlySet<string> {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? [])
  return new Set(all.flatMap(({ address }) => canonicalIp(address) ?? []))
}
