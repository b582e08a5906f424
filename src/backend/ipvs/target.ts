// Puts the entries of one family into the kernel in an order that never misleads a packet, observes them, and notices tampering.
//
// Order: sets and rules, then members, then servers, then addresses, so that traffic comes only when all else is there; backwards when
// they go. Servers are therefore always named by our sets: that is how we know our own again, after a crash or a predecessor.

import { describeError } from '../../lib/errors.ts'
import { Mutex } from '../../lib/mutex.ts'
import type { Timer } from '../../lib/time.ts'
import type { ServiceSeen } from '../../sys/netlink/ipvs.ts'
import type { Wait } from '../../sys/netlink/socket.ts'
import type { Applied, Changes, Held, OpenContext, RefusedEntry, Target, Wanted } from '../backend.ts'
import { IptablesPrograms, type Programs } from '../iptables-kit/programs.ts'
import type { CounterReading } from './counters.ts'
import { DeviceAddresses } from './device-addresses.ts'
import {
  addressEntry,
  deviceEntry,
  exactId,
  type IpvsEntry,
  type IpvsRulesEntry,
  keyOfId,
  memberEntry,
  nodePortId,
  serverKey,
} from './entries.ts'
import { Ipsets } from './ipsets.ts'
import type { IpvsNetlink } from './ipvs-netlink.ts'
import { isOurs, outside } from './ownership.ts'
import { RuleTables } from './rule-tables.ts'
import { setName } from './set-definitions.ts'
import { VirtualServers, type WantedServer } from './virtual-servers.ts'

export interface IpvsTargetOptions {
  readonly context: OpenContext
  readonly kernel: IpvsNetlink
  readonly programs: Programs
  readonly syncPeriodMs: number
  readonly excludeCidrs: readonly string[]
  readonly drainLimitMs: number
  readonly checkMs: number
  readonly onClose?: () => void
}

/** Everything is read again at every sync period, as upstream does; less often where that would take more than a hundredth of the time. */
const leastFullMs = 10_000
const fullShare = 100
/** At each look, servers are compared with the kernel for so long, and as long is looked for drained ones; all of them in turn. */
const spellMs = 10

export class IpvsTarget implements Target<IpvsEntry> {
  readonly #options: IpvsTargetOptions
  readonly #members: Ipsets
  readonly #addresses: DeviceAddresses
  readonly #tables: RuleTables
  readonly #servers: VirtualServers
  readonly #stop = new AbortController()
  readonly #included: (ip: string) => boolean
  #timer: Timer | undefined
  #lastRead = Number.NEGATIVE_INFINITY
  /** How long it took. */
  #readMs = 0
  #drifted = false
  /** Syncs, looks and the last one. */
  readonly #turns = new Mutex()
  #verified = 0
  /** Members of KUBE-IPVS-IPS, which belong to their addresses. */
  readonly #listed = new Set<string>()
  /** Names of service ports by server, for statistics. */
  readonly #names = new Map<string, string>()

  constructor(options: IpvsTargetOptions) {
    const { context, kernel, programs, drainLimitMs } = options
    const { family, log, clock } = context
    this.#options = options
    this.#members = new Ipsets(family)
    this.#addresses = new DeviceAddresses(family, (what) => this.#tell(what))
    this.#tables = new RuleTables(
      new IptablesPrograms({ programs, family, log, clock, patienceMs: options.syncPeriodMs }),
      family,
    )
    this.#servers = new VirtualServers({ kernel, family, clock, drainLimitMs })
    this.#included = outside(options.excludeCidrs)
  }

  async observe(signal: AbortSignal): Promise<readonly Held[]> {
    return this.#turns.run(async () => {
      const wait: Wait = { signal }
      const held: Held[] = []
      const { family, clock } = this.#options.context
      const begun = clock.monotonic()
      const members = await this.#members.read(wait)
      await this.#addresses.read(wait)
      await this.#servers.read(wait)
      held.push(...(await this.#tables.read(signal)))
      const ids = new Set(members.map(({ id }) => id))
      const { bound, elsewhere, present } = this.#addresses
      const ipSet = setName('KUBE-IPVS-IPS', family)
      if (present) held.push(deviceEntry)
      this.#listed.clear()
      for (const one of members) {
        if (one.id.startsWith(`member ${ipSet} `)) this.#listed.add(one.id.split(' ')[2] as string)
        else held.push(one)
      }
      for (const ip of new Set([...bound, ...this.#listed])) {
        const whole = bound.has(ip) && this.#listed.has(ip)
        held.push(whole ? addressEntry(ip) : { ...addressEntry(ip), digest: 'half' })
      }
      for (const ip of elsewhere) if (!bound.has(ip) && !this.#listed.has(ip)) held.push(addressEntry(ip))
      for (const [key, { server }] of this.#servers.known) {
        const digest = this.#servers.digest(key) as string
        if (this.#included(server.ip) && isOurs(server, bound, ids))
          held.push({ id: exactId(key), kind: 'server', digest })
      }
      this.#lastRead = clock.monotonic()
      this.#readMs = this.#lastRead - begun
      this.#drifted = false
      return held
    })
  }

  async apply(changes: Changes<IpvsEntry>, wanted: Wanted<IpvsEntry>, signal: AbortSignal): Promise<Applied> {
    return this.#turns.run(async () => {
      const before = this.#options.kernel.sent
      const refused = await this.#apply(changes, wanted, { signal }, signal)
      this.#arm()
      return { refused, figures: { ipvs_servers: this.#names.size, ipvs_messages: this.#options.kernel.sent - before } }
    })
  }

  async #apply(
    { put, drop }: Changes<IpvsEntry>,
    wanted: Wanted<IpvsEntry>,
    wait: Wait,
    signal: AbortSignal,
  ): Promise<readonly RefusedEntry[]> {
    const of = <K extends IpvsEntry['kind']>(kind: K) =>
      put.filter((entry): entry is Extract<IpvsEntry, { kind: K }> => entry.kind === kind)
    const dropped = (kind: string) => drop.filter((held) => held.kind === kind).map(({ id }) => id)
    const refused: RefusedEntry[] = []
    if (of('device').length > 0) await this.#addresses.create(wait)
    const sets = of('set')
    if (sets.length > 0)
      refused.push(
        ...(await this.#members.create(
          sets.map(({ set }) => set),
          wait,
        )),
      )
    for (const entry of of('rules') as IpvsRulesEntry[]) await this.#tables.write(entry, signal)

    await this.#unbind(dropped('address').map(ipOf), wait)
    const members = of('member').map(({ id }) => id)
    refused.push(...(await this.#members.change(members, true, wait)))
    const ids = [...of('server').map(({ id }) => id), ...dropped('server')]
    refused.push(...(await this.#servers.reconcile(this.#wishes(ids, wanted), wait)))
    refused.push(
      ...(await this.#bind(
        of('address').map(({ id }) => ipOf(id)),
        wait,
      )),
    )
    refused.push(...(await this.#members.change(dropped('member'), false, wait)))
    return refused
  }

  /** Also after every sync period, as far as that is affordable: not everything that others do shows by itself. */
  drifted(): boolean {
    const { context, syncPeriodMs } = this.#options
    const period = Math.max(syncPeriodMs, leastFullMs, fullShare * this.#readMs)
    return this.#drifted || context.clock.monotonic() - this.#lastRead > period
  }

  async close(): Promise<void> {
    this.#options.onClose?.()
    this.#stop.abort()
    this.#timer?.cancel()
    await this.#turns.run(async () => {})
    this.#options.kernel.close()
    this.#members.close()
    this.#addresses.close()
    this.#tables.close()
  }

  /** Of all servers in the kernel: those that are not ours have no name and are left out. */
  readings(services: readonly ServiceSeen[]): readonly CounterReading[] {
    const { family } = this.#options.context
    return services.flatMap((service) => {
      const server = serverKey(service)
      const port = service.family === family ? this.#names.get(server) : undefined
      return port === undefined ? [] : [{ family, server, port, statistics: service.statistics }]
    })
  }

  /** An exact address goes before a node port of the same number, whoever asks for it. */
  #wishes(ids: readonly string[], wanted: Wanted<IpvsEntry>): readonly WantedServer[] {
    const asked = new Set(ids)
    const keys = new Set(ids.flatMap((id) => keyOfId(id) ?? []))
    return [...keys].map((key): WantedServer => {
      const entry = wanted.entry(exactId(key)) ?? wanted.entry(nodePortId(key))
      if (entry?.kind !== 'server') {
        this.#names.delete(key)
        return { key, id: asked.has(exactId(key)) ? exactId(key) : nodePortId(key), entry: undefined }
      }
      this.#names.set(key, entry.port)
      return { key, id: entry.id, entry }
    })
  }

  async #bind(ips: readonly string[], wait: Wait): Promise<readonly RefusedEntry[]> {
    if (ips.length === 0) return []
    const set = setName('KUBE-IPVS-IPS', this.#options.context.family)
    const { bound, refused } = await this.#addresses.bind(ips, wait)
    const fresh = bound.filter((ip) => !this.#listed.has(ip))
    const stale = ips.filter((ip) => this.#addresses.elsewhere.has(ip))
    const full = await this.#members.change(
      fresh.map((ip) => memberEntry(set, ip).id),
      true,
      wait,
    )
    for (const ip of fresh) this.#listed.add(ip)
    // An address that turned out to be another interface's.
    await this.#unbind(stale, wait, false)
    return [...refused, ...full.map(({ id, error }) => ({ id: `address ${id.split(' ')[2]}`, error }))]
  }

  async #unbind(ips: readonly string[], wait: Wait, forget = true): Promise<void> {
    if (ips.length === 0) return
    const set = setName('KUBE-IPVS-IPS', this.#options.context.family)
    await this.#addresses.unbind(ips, wait, forget)
    const ids = ips.filter((ip) => this.#listed.delete(ip)).map((ip) => memberEntry(set, ip).id)
    await this.#members.change(ids, false, wait)
  }

  #tell(what: string): void {
    if (this.#drifted || this.#stop.signal.aborted) return
    this.#drifted = true
    this.#options.context.onDrift(`another program (${what})`)
  }

  // ---- A look twice a second: what others did, and what has drained. ----

  #arm(): void {
    if (this.#timer !== undefined || this.#stop.signal.aborted) return
    const { clock, log } = this.#options.context
    this.#timer = clock.after(this.#options.checkMs, () => {
      this.#timer = undefined
      this.#look()
        .catch((error: unknown) => {
          if (!this.#stop.signal.aborted) log.warn('cannot look after ipvs', { error: describeError(error) })
        })
        .finally(() => this.#arm())
    })
  }

  async #look(): Promise<void> {
    // A sync under way knows better; its changes are not tampering.
    if (this.#turns.open > 0 || this.#drifted) return
    await this.#turns.run(async () => {
      const { signal } = this.#stop
      const wait: Wait = { signal, deadlineMs: 10_000 }
      if (this.#servers.anyDraining) await this.#servers.sweep(wait, this.#enough())
      const found =
        (await this.#verifySome(wait)) || (await this.#members.check(wait)) || (await this.#tables.check(signal))
      if (found !== '') this.#tell(found)
    })
  }

  /** A flush shows at the first of them. Whoever waits to change something goes first. */
  async #verifySome(wait: Wait): Promise<string> {
    const enough = this.#enough()
    const keys = [...this.#names.keys()]
    for (let left = keys.length; left > 0; left--) {
      const key = keys[this.#verified++ % keys.length] as string
      if (!(await this.#servers.verify(key, wait))) return `virtual server ${key} was changed`
      if (enough()) break
    }
    return ''
  }

  #enough(): () => boolean {
    const { clock } = this.#options.context
    const end = clock.monotonic() + spellMs
    return () => this.#turns.open > 1 || clock.monotonic() > end
  }
}

const ipOf = (id: string): string => id.split(' ')[1] as string
