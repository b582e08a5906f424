// Writes the entries of one family to the kernel in an order that never misdirects a packet, and observes them.
//
// Order: sets and rules, then members, then servers, then addresses, so that traffic comes only when everything else is there; the reverse
// when they are removed. So a member of one of our sets names every server, which is how servers are recognised after a crash or after
// another proxy.

import { Mutex } from '../../lib/mutex.ts'
import type { ListedServer } from '../../sys/netlink/ipvs.ts'
import type { Wait } from '../../sys/netlink/socket.ts'
import type { Applied, Changes, Held, OpenContext, RefusedEntry, Target, Wanted } from '../backend.ts'
import { IptablesPrograms, type ProgramSet } from '../iptables-kit/programs.ts'
import type { CounterReading } from './counters.ts'
import { DriftChecks } from './drift.ts'
import { addressOfId, deviceEntry, exactId, type IpvsEntry, keyOfId, nodePortId, serverKey } from './entries.ts'
import { BoundAddresses } from './kernel/bound-addresses.ts'
import { DeviceAddresses } from './kernel/device-addresses.ts'
import { Ipsets } from './kernel/ipsets.ts'
import type { IpvsNetlink } from './kernel/ipvs-netlink.ts'
import { RuleTables } from './kernel/rule-tables.ts'
import { VirtualServers, type WantedServer } from './kernel/virtual-servers.ts'
import { decideOwnership } from './ownership.ts'

export interface IpvsTargetOptions {
  readonly context: OpenContext
  readonly kernel: IpvsNetlink
  readonly programs: ProgramSet
  readonly syncPeriodMs: number
  readonly excludedCidrs: readonly string[]
  readonly drainLimitMs: number
  readonly checkMs: number
  readonly onClose?: () => void
}

export class IpvsTarget implements Target<IpvsEntry> {
  readonly #options: IpvsTargetOptions
  readonly #ipsets: Ipsets
  readonly #device: DeviceAddresses
  readonly #addresses: BoundAddresses
  readonly #tables: RuleTables
  readonly #servers: VirtualServers
  readonly #drift: DriftChecks
  /** Held during syncs, checks and `close`. */
  readonly #mutex = new Mutex()
  /** The service port of each server, for statistics. */
  readonly #portNames = new Map<string, string>()

  constructor(options: IpvsTargetOptions) {
    const { context, kernel, programs, drainLimitMs, syncPeriodMs, checkMs } = options
    const { family, log, clock } = context
    this.#options = options
    this.#ipsets = new Ipsets(family)
    this.#device = new DeviceAddresses(family, (what) => this.#drift.report(what))
    this.#addresses = new BoundAddresses(this.#device, this.#ipsets, family)
    this.#tables = new RuleTables(
      new IptablesPrograms({ set: programs, family, log, clock, lockTimeoutMs: syncPeriodMs }),
      family,
    )
    this.#servers = new VirtualServers({ kernel, family, clock, drainLimitMs })
    this.#drift = new DriftChecks({
      context,
      mutex: this.#mutex,
      syncPeriodMs,
      checkMs,
      sweep: (wait, isOver) => this.#servers.draining.sweep(wait, isOver),
      checks: [
        (wait, isOver) => this.#checkServers(wait, isOver),
        (wait) => this.#ipsets.describeDrift(wait),
        ({ signal }) => this.#tables.describeDrift(signal),
      ],
    })
  }

  async observe(signal: AbortSignal): Promise<readonly Held[]> {
    return this.#mutex.run(async () => {
      const startedAt = this.#options.context.clock.monotonic()
      const wait: Wait = { signal }
      const sets = await this.#ipsets.read(wait)
      await this.#device.read(wait)
      await this.#servers.read(wait)
      const rules = await this.#tables.read(signal)
      const device = this.#device.isPresent ? [deviceEntry] : []
      const held = [...rules, ...device, ...this.#addresses.replaceMembers(sets), ...this.#ownServers(sets)]
      this.#drift.noteFullRead(startedAt)
      return held
    })
  }

  async apply(changes: Changes<IpvsEntry>, signal: AbortSignal, wanted: Wanted<IpvsEntry>): Promise<Applied> {
    return this.#mutex.run(async () => {
      const before = this.#options.kernel.sent
      const refused = await this.#apply(changes, wanted, signal)
      this.#drift.start()
      const figures = { ipvs_servers: this.#portNames.size, ipvs_messages: this.#options.kernel.sent - before }
      return { refused, figures }
    })
  }

  drifted(): boolean {
    return this.#drift.isDue
  }

  async close(): Promise<void> {
    this.#options.onClose?.()
    this.#drift.stop()
    // Waits for a sync or a check that is running.
    await this.#mutex.run(async () => {})
    this.#options.kernel.close()
    this.#ipsets.close()
    this.#device.close()
    this.#tables.close()
  }

  /** `listed` are all servers in the kernel; servers that are not ours are left out. */
  readCounters(listed: readonly ListedServer[]): readonly CounterReading[] {
    const { family } = this.#options.context
    return listed.flatMap((one) => {
      const server = serverKey(one)
      const port = one.family === family ? this.#portNames.get(server) : undefined
      const endpoints = [...(this.#servers.known.get(server)?.destinations.keys() ?? [])]
      return port === undefined ? [] : [{ family, server, key: one, port, statistics: one.statistics, endpoints }]
    })
  }

  async #apply(
    { put, drop }: Changes<IpvsEntry>,
    wanted: Wanted<IpvsEntry>,
    signal: AbortSignal,
  ): Promise<readonly RefusedEntry[]> {
    const wait: Wait = { signal }
    const added = <K extends IpvsEntry['kind']>(kind: K) =>
      put.filter((entry): entry is Extract<IpvsEntry, { kind: K }> => entry.kind === kind)
    const addedIds = (kind: IpvsEntry['kind']) => added(kind).map(({ id }) => id)
    const droppedIds = (kind: IpvsEntry['kind']) => drop.filter((held) => held.kind === kind).map(({ id }) => id)

    if (added('device').length > 0) await this.#device.create(wait)
    const sets = added('set').map(({ set }) => set)
    const refused = [...(await this.#ipsets.create(sets, wait))]
    for (const entry of added('rules')) await this.#tables.write(entry, signal)
    await this.#addresses.unbind(droppedIds('address').map(addressOfId), wait)
    refused.push(...(await this.#ipsets.addMembers(addedIds('member'), wait)))
    const servers = this.#wantedServers([...addedIds('server'), ...droppedIds('server')], wanted)
    refused.push(...(await this.#servers.reconcile(servers, wait)))
    refused.push(...(await this.#addresses.bind(addedIds('address').map(addressOfId), wait)))
    refused.push(...(await this.#ipsets.deleteMembers(droppedIds('member'), wait)))
    return refused
  }

  /** A server of an exact address has precedence over a node port of the same number, even if two services want them. */
  #wantedServers(ids: readonly string[], wanted: Wanted<IpvsEntry>): readonly WantedServer[] {
    const changed = new Set(ids)
    const keys = new Set(ids.flatMap((id) => keyOfId(id) ?? []))
    return [...keys].map((key): WantedServer => {
      const entry = wanted.entry(exactId(key)) ?? wanted.entry(nodePortId(key))
      if (entry?.kind !== 'server') {
        this.#portNames.delete(key)
        return { key, id: changed.has(exactId(key)) ? exactId(key) : nodePortId(key), entry: undefined }
      }
      this.#portNames.set(key, entry.port)
      return { key, id: entry.id, entry }
    })
  }

  /** `sets` are our sets and their members. */
  #ownServers(sets: readonly Held[]): readonly Held[] {
    const isOurs = decideOwnership({
      bound: this.#device.bound,
      members: new Set(sets.map(({ id }) => id)),
      excludedCidrs: this.#options.excludedCidrs,
    })
    return [...this.#servers.known]
      .filter(([, { server }]) => isOurs(server))
      .map(([key]) => ({ id: exactId(key), kind: 'server', digest: this.#servers.digest(key) as string }))
  }

  /** A flush of IPVS shows at the first server. */
  async #checkServers(wait: Wait, isOver: () => boolean): Promise<string> {
    const key = await this.#servers.findChanged([...this.#portNames.keys()], wait, isOver)
    return key === undefined ? '' : `virtual server ${key} was changed`
  }
}
