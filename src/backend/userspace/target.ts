// Opens listeners, then writes the chains that lead to them; closes what is no longer wanted only after nothing leads there.

import { networkInterfaces } from 'node:os'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, type Family, familyOf, isLinkLocal6, isLoopback, isUnspecified } from '../../lib/ip.ts'
import { ExecError } from '../../sys/process/exec.ts'
import type { Applied, Changes, Held, OpenContext, RefusedEntry, Settings, Target, Wanted } from '../backend.ts'
import { canary } from '../iptables-kit/chains.ts'
import { DriftWatch } from '../iptables-kit/drift-watch.ts'
import { type IsolationFailure, isolate } from '../iptables-kit/isolate.ts'
import { IptablesPrograms, type ProgramSet } from '../iptables-kit/programs.ts'
import { suspectLines } from '../iptables-kit/restore-text.ts'
import { type ChainUses, openTableReader, type TableReader } from '../iptables-kit/table-reader.ts'
import type { DescriptorBudget } from '../relay/relay.ts'
import { listenerId, type PortalRulesEntry, type RelayListenerEntry, reaches, type UserspaceEntry } from './entries.ts'
import {
  canaryTables,
  compose,
  composeRefusal,
  hookArgs,
  hooks,
  type MissingListeners,
  ownChains,
  type PortalDraft,
  type PortalHook,
  type PortalTable,
} from './portal-chains.ts'
import { RelayListeners } from './relay-listeners.ts'

export interface UserspaceTargetOptions {
  readonly context: OpenContext
  readonly programs: ProgramSet
  readonly budget: DescriptorBudget
  readonly settings: Pick<Settings, 'syncPeriodMs' | 'userspace'>
}

/** Chains that somebody left before us. */
const leftover: Held = { kind: 'leftover', id: 'leftover', digest: '' }

export class UserspaceTarget implements Target<UserspaceEntry> {
  readonly #context: OpenContext
  readonly #settings: UserspaceTargetOptions['settings']
  readonly #tools: IptablesPrograms
  readonly #sight: TableReader
  readonly #watch: DriftWatch
  readonly #listeners: RelayListeners
  /** Rules and jumps in each of our chains, as written. */
  #uses: ReadonlyMap<string, number> = new Map()
  /** What observe saw; set means that the next apply writes everything and makes sure of the hooks. */
  #seen: ChainUses | undefined
  /** Rules that the kernel has. Of a service whose new ones were refused these are the old ones. */
  #rules: ReadonlyMap<string, PortalRulesEntry> = new Map()
  /** Their text; undefined: unknown. */
  #written: string | undefined
  /** Rules, or the ports that they lead to, changed since they were written. */
  #due = true
  /** Rules of a dead process are in force. */
  #inherited = false
  #begun = false

  constructor({ context, programs, budget, settings }: UserspaceTargetOptions) {
    const { family, log, clock } = context
    this.#context = context
    this.#settings = settings
    this.#tools = new IptablesPrograms({ set: programs, family, log, clock, lockTimeoutMs: settings.syncPeriodMs })
    this.#sight = openTableReader(this.#tools, family)
    const { portRange, udpTimeoutMs: udpIdleMs } = settings.userspace
    this.#listeners = new RelayListeners({ portRange, udpIdleMs, budget, clock, log })
    const { onDrift } = context
    const expected = () => this.#uses
    const legacyEntries = () => partsOf(this.#uses)
    this.#watch = new DriftWatch({ reader: this.#sight, expected, legacyEntries, hooks, onDrift, clock, log })
  }

  /** Our own listeners, which nobody can tamper with. Rules carry no digest, so they are in doubt and will be written. */
  async observe(signal: AbortSignal): Promise<readonly Held[]> {
    this.#seen = await this.#sight.readUses(signal)
    const left = this.#written === undefined && ownChains.nat.some((chain) => this.#seen?.uses.has(`nat ${chain}`))
    this.#inherited = left && !this.#begun
    return [...this.#listeners.held(), ...(left ? [leftover] : [])]
  }

  async apply(changes: Changes<UserspaceEntry>, signal: AbortSignal, wanted: Wanted<UserspaceEntry>): Promise<Applied> {
    if (this.#inherited) await this.#disarm(wanted, signal)
    const version = this.#listeners.version
    const refused = [...(await this.#open(changes, wanted))]
    // Endpoints that come and go change what listeners know, and no rule.
    this.#due ||= version !== this.#listeners.version || changes.drop.length > 0 || changes.put.some(isRule)
    if (this.#due || this.#seen !== undefined) refused.push(...(await this.#write(changes, wanted, signal)))
    await this.#listeners.drop(changes.drop.filter(({ kind }) => kind === 'listener').map(({ id }) => id))
    return { refused, figures: this.#listeners.figures() }
  }

  /** Whether one of a service port's sockets is there. */
  answers(id: string, ip: string, port: number): boolean {
    const hosts = [ip, anyAddress(this.#context.family)]
    return reaches.some((reach) => this.#listeners.listens(listenerId(id, reach), hosts, port))
  }

  drifted(): boolean {
    return this.#watch.drifted
  }

  /** The rules stay, and lead nowhere until the next process has written its own: there is nobody to relay in between. */
  async close(): Promise<void> {
    this.#watch.close()
    await this.#listeners.drop(this.#listeners.held().map(({ id }) => id))
  }

  /**
   * What a dead process wrote leads to ports that listeners of other services may be given now, and clients must not end up with
   * those. So before anything listens, everybody is refused, as they were while nobody listened.
   */
  async #disarm(wanted: Wanted<UserspaceEntry>, signal: AbortSignal): Promise<void> {
    const rules = joined(new Map(), [...rulesOf(wanted)])
    try {
      await this.#tools.restore(composeRefusal(this.#draft(rules, wanted)), signal)
    } catch (error) {
      // A service that is refused is found out about later, when all rules are written.
      if (!(error instanceof ExecError) || error.exitCode === undefined) throw error
      this.#context.log.warn('rules of an earlier process stay until new ones are written', { error: error.message })
    }
    this.#inherited = false
    this.#begun = true
  }

  /** Before the rules: nothing may lead to a port that nobody listens on. */
  async #open({ put }: Changes<UserspaceEntry>, wanted: Wanted<UserspaceEntry>): Promise<readonly RefusedEntry[]> {
    const host = this.#host(wanted) ?? anyAddress(this.#context.family)
    const fresh = put.filter((entry) => entry.kind === 'listener')
    const moved = this.#listeners.misplaced(host).map((id) => wanted.entry(id))
    const entries = new Map<string, RelayListenerEntry>()
    for (const entry of [...moved, ...fresh]) if (entry?.kind === 'listener') entries.set(entry.id, entry)
    if (entries.size === 0) return []
    const nodePorts = nodePortsOf(wanted)
    const avoid = ({ protocol, port }: { protocol: string; port: number }) => nodePorts.has(`${protocol} ${port}`)
    return await this.#listeners.put(entries.values(), { host, avoid })
  }

  async #write(
    changes: Changes<UserspaceEntry>,
    wanted: Wanted<UserspaceEntry>,
    signal: AbortSignal,
  ): Promise<readonly RefusedEntry[]> {
    const seen = this.#seen
    const fresh = changes.put.filter((entry) => entry.kind === 'rules')
    const kept = new Map(seen === undefined ? this.#rules : [])
    for (const { id } of changes.drop) kept.delete(id)
    if (seen === undefined && compose(this.#draft(joined(kept, fresh), wanted)) === this.#written) {
      this.#rules = joined(kept, fresh)
      this.#due = false
      return []
    }
    this.#written = undefined
    const commits = this.#tools.commits
    try {
      await this.#watch.beginWrite()
      let missing = seen === undefined ? undefined : await this.#missing(seen, signal)
      this.#rules = kept
      const attempt = async (some: readonly PortalRulesEntry[]) => {
        const failure = await this.#attempt(joined(this.#rules, some), wanted, missing, signal)
        if (failure === undefined) missing = undefined
        // Each table is written by itself, so some hooks may be there by now.
        else if (missing !== undefined) missing = await this.#missing(await this.#sight.readUses(signal), signal)
        return failure
      }
      const refusals = await isolate(fresh, { attempt, mentions })
      this.#due = false
      this.#seen = undefined
      const write = { commits: this.#tools.commits - commits, full: seen !== undefined, clean: refusals.length === 0 }
      await this.#watch.endWrite(write, signal)
      return refusals.map(({ item, error }) => ({ id: item.id, error }))
    } catch (error) {
      this.#watch.abandonWrite()
      throw error
    }
  }

  /** Undefined if the kernel has these rules now. */
  async #attempt(
    rules: ReadonlyMap<string, PortalRulesEntry>,
    wanted: Wanted<UserspaceEntry>,
    missing: MissingListeners | undefined,
    signal: AbortSignal,
  ): Promise<IsolationFailure | undefined> {
    const draft = this.#draft(rules, wanted)
    const text = compose(draft, missing)
    try {
      signal.throwIfAborted()
      await this.#tools.restore(text, signal)
    } catch (error) {
      if (!(error instanceof ExecError) || error.exitCode === undefined) throw error
      const lines = suspectLines(error.stderr, text)
      return {
        error: new ProxyError('iptables-refused', `rules are refused: ${error.message}`, { cause: error }),
        lines,
      }
    }
    this.#begun = true
    this.#rules = rules
    this.#written = compose(draft)
    this.#uses = usesOf(this.#written)
    return undefined
  }

  #draft(rules: ReadonlyMap<string, PortalRulesEntry>, wanted: Wanted<UserspaceEntry>): PortalDraft {
    const inOrder = [...rules.values()].sort((a, b) => (a.order < b.order ? -1 : 1))
    return {
      texts: inOrder.map(({ digest }) => digest),
      opened: (listener) => this.#listeners.opened(listener),
      // Those that are open and no longer wanted are closed as soon as nothing leads there.
      listeners: listenersOf(wanted).flatMap(({ id }) => this.#listeners.opened(id) ?? []),
      host: this.#host(wanted),
      nodePorts: nodePortsOf(wanted),
    }
  }

  /** The configured address, the node's own if it is really here, or any that is. */
  #host(wanted: Wanted<UserspaceEntry>): string | undefined {
    const { family } = this.#context
    const { bindAddress } = this.#settings.userspace
    if (!isUnspecified(bindAddress) && familyOf(bindAddress) === family) return bindAddress
    const node = wanted.entry('host')?.digest ?? this.#context.node.ip
    const own = ownAddresses(family)
    return own.includes(node) ? node : own[0]
  }

  /** A chain that nothing uses is not hooked in; of the others it must be asked. */
  async #missing({ uses }: ChainUses, signal: AbortSignal): Promise<MissingListeners> {
    const absent: PortalHook[] = []
    for (const hook of hooks) {
      const used = (uses.get(`${hook.table} ${hook.to}`) ?? 0) > 0
      const rule = [hook.from, '-t', hook.table, ...hookArgs(hook)]
      if (!used || !(await this.#tools.succeeds(['-C', ...rule], signal))) absent.push(hook)
    }
    return { hooks: absent, canaries: canaryTables.filter((table) => !uses.has(`${table} ${canary}`)) }
  }
}

/** Or what rules depend on. Listeners that open are counted by themselves. */
const isRule = ({ kind }: Held): boolean => kind !== 'listener'

function listenersOf(wanted: Wanted<UserspaceEntry>): readonly RelayListenerEntry[] {
  return [...wanted.entries()].filter((entry) => entry.kind === 'listener')
}

function* rulesOf(wanted: Wanted<UserspaceEntry>): Iterable<PortalRulesEntry> {
  for (const entry of wanted.entries()) if (entry.kind === 'rules') yield entry
}

function nodePortsOf(wanted: Wanted<UserspaceEntry>): ReadonlySet<string> {
  const nodePorts = new Set<string>()
  for (const entry of rulesOf(wanted)) for (const nodePort of entry.nodePorts) nodePorts.add(nodePort)
  return nodePorts
}

function joined(
  rules: ReadonlyMap<string, PortalRulesEntry>,
  more: readonly PortalRulesEntry[],
): ReadonlyMap<string, PortalRulesEntry> {
  const all = new Map(rules)
  for (const entry of more) all.set(entry.id, entry)
  return all
}

/** A line of the text is one of the entry's up to where it leads to. */
const mentions = ({ digest }: PortalRulesEntry, line: string): boolean =>
  digest.split('\n').some((own) => own !== '' && line.startsWith(own.split('<', 1)[0] as string))

/** Every chain is used by the rules in it and by the hooks that lead to it. */
function usesOf(text: string): ReadonlyMap<string, number> {
  const uses = new Map<string, number>()
  const use = (chain: string) => uses.set(chain, (uses.get(chain) ?? 0) + 1)
  for (const { table, to } of hooks) use(`${table} ${to}`)
  let table = ''
  for (const line of text.split('\n')) {
    if (line.startsWith('*')) table = line.slice(1)
    else if (line.startsWith('-A ')) use(`${table} ${line.slice(3, line.indexOf(' ', 3))}`)
  }
  return uses
}

/** Chains and hooks are always as many, so that it is the rules that make the difference between two writes. */
function partsOf(uses: ReadonlyMap<string, number>): Readonly<Record<PortalTable, number>> {
  const parts = { filter: 0, nat: 0 }
  for (const [chain, use] of uses) parts[chain.startsWith('nat ') ? 'nat' : 'filter'] += use
  return parts
}

const anyAddress = (family: Family): string => (family === 4 ? '0.0.0.0' : '::')

/** Of this machine, in the order of its interfaces; none that only a link or the machine itself knows. */
function ownAddresses(family: Family): readonly string[] {
  return Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .map(({ address }) => canonicalIp(address) ?? '')
    .filter((ip) => ip !== '' && familyOf(ip) === family && !isLoopback(ip) && !isLinkLocal6(ip))
}
