// The userspace mode for those who may change nothing: sockets on loopback alone, no rule in the kernel, no privilege at all.
//
// Node ports answer on 127.0.0.1. A cluster IP answers on the loopback address with the same last three numbers: 10.96.0.80 is
// 127.96.0.80. Ports that only root may bind move up by 10000.

import { ProxyError } from '../../lib/errors.ts'
import { hostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock } from '../../lib/time.ts'
import type { Endpoint, Frontend, Protocol, ServicePort } from '../../model/types.ts'
import { readSysctl } from '../../sys/sysctl.ts'
import type { Backend, Changes, Held, Refusal, Settings, Target } from '../backend.ts'
import { Balancer } from '../relay/balance.ts'
import { type Relay, relayTcp } from '../relay/tcp.ts'
import { relayUdp } from '../relay/udp.ts'

interface LoopbackEntry extends Held {
  readonly kind: 'listener'
  readonly ip: string
  readonly port: number
  readonly protocol: Protocol
  readonly endpoints: readonly string[]
  readonly affinitySeconds: number
}

const movedUp = 10_000

/** Where a frontend answers; undefined if nowhere. `firstFree`: the lowest port that everybody may bind. */
export function loopbackAddress(
  frontend: Frontend,
  firstFree: number,
): { readonly ip: string; readonly port: number } | undefined {
  const port = frontend.port < firstFree ? frontend.port + movedUp : frontend.port
  if (frontend.kind === 'node-port') return { ip: '127.0.0.1', port }
  const bytes = frontend.ip.split('.')
  return frontend.kind === 'cluster-ip' && bytes.length === 4
    ? { ip: `127.${bytes.slice(1).join('.')}`, port }
    : undefined
}

export const firstFreePort = (): number => Number(readSysctl('net/ipv4/ip_unprivileged_port_start') ?? 1024)

export function loopback(settings: Pick<Settings, 'userspace'>): Backend<LoopbackEntry> {
  const firstFree = firstFreePort()
  return {
    name: 'userspace',
    periodic: false,
    families: async () => [4],
    prepare: async () => {},
    base: () => [],
    plan: (port) => plan(port, firstFree),
    open: async ({ log, clock }) => new LoopbackTarget(log, clock, settings.userspace.udpTimeoutMs),
  }
}

function plan(port: ServicePort, firstFree: number): readonly LoopbackEntry[] {
  if (port.protocol === 'sctp') return []
  return port.frontends.flatMap((frontend) => {
    const at = loopbackAddress(frontend, firstFree)
    const disposition = frontend.kind === 'cluster-ip' ? port.internal : 'cluster'
    // Nobody listens, so the kernel refuses: what a service without endpoints is to do.
    const usable: readonly Endpoint[] = disposition === 'cluster' || disposition === 'local' ? port[disposition] : []
    if (at === undefined || usable.length === 0) return []
    const endpoints = usable.map(({ ip, port: number }) => hostPort(ip, number))
    const { protocol, affinitySeconds } = port
    return [
      {
        kind: 'listener' as const,
        id: `listener ${protocol} ${hostPort(at.ip, at.port)}`,
        digest: `${endpoints.join(',')} ${affinitySeconds} # ${port.name}`,
        ...at,
        protocol,
        endpoints,
        affinitySeconds,
      },
    ]
  })
}

interface Open {
  readonly relay: Relay
  readonly balancer: Balancer
  digest: string
}

class LoopbackTarget implements Target<LoopbackEntry> {
  readonly #log: Logger
  readonly #clock: Clock
  readonly #udpIdleMs: number
  readonly #open = new Map<string, Open>()

  constructor(log: Logger, clock: Clock, udpIdleMs: number) {
    this.#log = log
    this.#clock = clock
    this.#udpIdleMs = udpIdleMs
  }

  async observe(): Promise<readonly Held[]> {
    return [...this.#open].map(([id, { digest }]) => ({ id, kind: 'listener', digest }))
  }

  async apply({ put, drop }: Changes<LoopbackEntry>) {
    const refused: Refusal[] = []
    for (const { id } of drop) {
      await this.#open.get(id)?.relay.close(true)
      this.#open.delete(id)
    }
    for (const entry of put) {
      try {
        await this.#put(entry)
      } catch (error) {
        refused.push({
          id: entry.id,
          error: error instanceof ProxyError ? error : new ProxyError('listen', String(error)),
        })
      }
    }
    return { refused }
  }

  drifted(): boolean {
    return false
  }

  /** Unlike rules, sockets cannot outlive the process. */
  async close(): Promise<void> {
    for (const { relay } of this.#open.values()) await relay.close(true)
    this.#open.clear()
  }

  async #put(entry: LoopbackEntry): Promise<void> {
    const open = this.#open.get(entry.id)
    if (open !== undefined) {
      open.balancer.update(entry.endpoints, entry.affinitySeconds)
      open.relay.keep(new Set(entry.endpoints))
      open.digest = entry.digest
      return
    }
    const balancer = new Balancer(Math.random, () => this.#clock.monotonic())
    balancer.update(entry.endpoints, entry.affinitySeconds)
    const options = { host: entry.ip, port: entry.port, balancer, log: this.#log }
    const relay = await (entry.protocol === 'udp'
      ? relayUdp({ ...options, idleMs: this.#udpIdleMs })
      : relayTcp(options))
    this.#open.set(entry.id, { relay, balancer, digest: entry.digest })
  }
}
