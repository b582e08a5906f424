// Opens listeners, writes the rules that redirect to them, and closes unwanted listeners only after no rule redirects to them.

import { describeError } from '../../lib/errors.ts'
import { sleep } from '../../lib/time.ts'
import type {
  Applied,
  Changes,
  Held,
  OpenContext,
  PortCounters,
  RefusedEntry,
  Settings,
  Target,
  Wanted,
} from '../backend.ts'
import type { ProgramSet } from '../iptables-kit/programs.ts'
import type { DialReports } from '../relay/dial-reports.ts'
import type { FlowReports } from '../relay/flow-reports.ts'
import type { DescriptorBudget } from '../relay/relay.ts'
import type { OpenListeners } from './check.ts'
import { listenerId, type PortalRulesEntry, type RelayListenerEntry, reaches, type UserspaceEntry } from './entries.ts'
import { anyAddress, chooseListenAddress } from './listen-address.ts'
import { PortalRules } from './portal-rules.ts'
import { RelayListeners } from './relay-listeners.ts'
import type { ListenerLayout, OpenedListener } from './restore.ts'

export interface UserspaceTargetOptions {
  readonly context: OpenContext
  readonly programs: ProgramSet
  readonly budget: DescriptorBudget
  readonly dials: DialReports
  readonly flows: FlowReports
  readonly settings: Pick<Settings, 'syncPeriodMs' | 'userspace'>
}

/** A process that ends waits so long for its last restore, */
const handOverMs = 15_000
/** so long for clients that were redirected to a listener just before it, */
const lastAcceptMs = 100
/** and so long for connections that it relays. Longer ones are cut. */
const drainMs = 2_000

/** Stands for chains that another process left. */
const leftover: Held = { kind: 'leftover', id: 'leftover', digest: '' }

export class UserspaceTarget implements Target<UserspaceEntry> {
  readonly #context: OpenContext
  readonly #settings: UserspaceTargetOptions['settings']
  readonly #rules: PortalRules
  readonly #listeners: RelayListeners
  /** Rules, or the ports that they redirect to, changed since the last successful write. */
  #isDue = true
  /** The address of the listeners at the last write. */
  #host: string | undefined

  constructor({ context, programs, budget, dials, flows: reports, settings }: UserspaceTargetOptions) {
    const { log, clock, family } = context
    this.#context = context
    this.#settings = settings
    this.#rules = new PortalRules({ context, programs, lockTimeoutMs: settings.syncPeriodMs })
    const { portRange, udpTimeoutMs: udpIdleMs } = settings.userspace
    const flows = { reports, family }
    this.#listeners = new RelayListeners({ portRange, udpIdleMs, budget, dials, flows, clock, log })
  }

  /** Returns our own listeners, which no other process can change. Rules have no digest, so they are not returned and will be written. */
  async observe(signal: AbortSignal): Promise<readonly Held[]> {
    const isLeftover = await this.#rules.observe(signal)
    return [...this.#listeners.listHeld(), ...(isLeftover ? [leftover] : [])]
  }

  async apply(changes: Changes<UserspaceEntry>, signal: AbortSignal, wanted: Wanted<UserspaceEntry>): Promise<Applied> {
    if (this.#rules.isInherited) await this.#rules.refuseAll(listRules(wanted), this.#layout(wanted), signal)
    this.#host = this.#chooseHost(wanted)
    const opened = this.#listeners.openedCount
    const refused = [...(await this.#open(changes, wanted))]
    // A change of endpoints changes a listener and no rule.
    this.#isDue ||= opened !== this.#listeners.openedCount || changes.drop.length > 0 || changes.put.some(affectsRules)
    if (this.#isDue || this.#rules.isUnverified) {
      const put = changes.put.filter((entry) => entry.kind === 'rules')
      refused.push(...(await this.#rules.write({ put, drop: changes.drop }, this.#layout(wanted), signal)))
      this.#isDue = false
    }
    await this.#listeners.close(changes.drop.filter(({ kind }) => kind === 'listener').map(({ id }) => id))
    return { refused, figures: this.#listeners.figures() }
  }

  readCounters(): readonly PortCounters[] {
    return this.#listeners.readCounters(this.#context.family)
  }

  /** For a check of the kernel. */
  get openListeners(): OpenListeners {
    const address = this.#host ?? anyAddress(this.#context.family)
    const findOpened = (id: string) => this.#listeners.findOpened(id)
    return { findOpened, host: this.#host, address, held: this.#listeners.listHeld() }
  }

  /** Whether a listener of the service port has this address and port. */
  answers(id: string, ip: string, port: number): boolean {
    const hosts = [ip, anyAddress(this.#context.family)]
    return reaches.some((reach) => this.#listeners.isListening(listenerId(id, reach), hosts, port))
  }

  drifted(): boolean {
    return this.#rules.hasDrifted
  }

  /** No process can relay until the next one has written its rules, so the kernel translates to endpoints meanwhile. */
  async close(): Promise<void> {
    try {
      await this.#rules.handOver((id) => this.#listeners.listEndpoints(id), AbortSignal.timeout(handOverMs))
      await sleep(this.#context.clock, lastAcceptMs)
    } catch (error) {
      this.#context.log.warn('Clients are refused until the next proxy runs', { error: describeError(error) })
    }
    await this.#listeners.close(this.#listeners.listHeld().map(({ id }) => id))
    await this.#listeners.drain(drainMs)
  }

  /** Called before the rules are written: no rule may redirect to a port without a listener. */
  async #open({ put }: Changes<UserspaceEntry>, wanted: Wanted<UserspaceEntry>): Promise<readonly RefusedEntry[]> {
    const host = this.#chooseHost(wanted) ?? anyAddress(this.#context.family)
    const moved = this.#listeners.listElsewhere(host).map((id) => wanted.entry(id))
    const entries = new Map<string, RelayListenerEntry>()
    for (const entry of [...moved, ...put]) if (entry?.kind === 'listener') entries.set(entry.id, entry)
    if (entries.size === 0) return []
    const nodePorts = collectNodePorts(wanted)
    const avoid = ({ protocol, port }: OpenedListener) => nodePorts.has(`${protocol} ${port}`)
    return await this.#listeners.put(entries.values(), { host, avoid })
  }

  #layout(wanted: Wanted<UserspaceEntry>): ListenerLayout {
    const findOpened = (id: string) => this.#listeners.findOpened(id)
    return {
      findOpened,
      // Open listeners that are no longer wanted are left out: they are closed as soon as no rule redirects to them.
      listeners: listListeners(wanted).flatMap(({ id }) => findOpened(id) ?? []),
      host: this.#chooseHost(wanted),
      nodePorts: collectNodePorts(wanted),
    }
  }

  #chooseHost(wanted: Wanted<UserspaceEntry>): string | undefined {
    const { family, node } = this.#context
    const { bindAddress } = this.#settings.userspace
    return chooseListenAddress({ family, bindAddress, nodeIp: wanted.entry('host')?.digest ?? node.ip })
  }
}

/** True for rules and for what they depend on. Opened listeners are counted separately. */
const affectsRules = ({ kind }: Held): boolean => kind !== 'listener'

const listListeners = (wanted: Wanted<UserspaceEntry>): readonly RelayListenerEntry[] =>
  [...wanted.entries()].filter((entry) => entry.kind === 'listener')

const listRules = (wanted: Wanted<UserspaceEntry>): readonly PortalRulesEntry[] =>
  [...wanted.entries()].filter((entry) => entry.kind === 'rules')

const collectNodePorts = (wanted: Wanted<UserspaceEntry>): ReadonlySet<string> =>
  new Set(listRules(wanted).flatMap(({ nodePorts }) => nodePorts))
