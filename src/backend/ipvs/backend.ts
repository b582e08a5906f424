// The ipvs mode as the engine sees it: connects its plan, target, preparation and counters.

import { familyOf } from '../../lib/ip.ts'
import type { Backend, OpenContext, PortCounters, Settings, Target } from '../backend.ts'
import { ProgramFinder } from '../iptables-kit/program-finder.ts'
import type { ProgramSet } from '../iptables-kit/programs.ts'
import { base } from './base.ts'
import { PortTotals } from './counters.ts'
import type { IpvsEntry } from './entries.ts'
import { IpvsNetlink, missingIpvsError } from './kernel/ipvs-netlink.ts'
import { plan } from './plan.ts'
import { prepare, requireIpvs } from './prepare.ts'
import { IpvsTarget } from './target.ts'

export type IpvsSettings = Pick<Settings, 'syncPeriodMs' | 'counters' | 'ipvs'>

const defaultScheduler = 'rr'
/** A draining destination is removed after this time even if it has connections; they end then. */
const drainLimitMs = 3_600_000
const checkMs = 500

export function ipvs(settings: IpvsSettings): Backend<IpvsEntry> {
  const scheduler = settings.ipvs.scheduler || defaultScheduler
  const finder = new ProgramFinder('ipvs')
  const targets = new OpenTargets(settings, finder)
  return {
    name: 'ipvs',
    periodic: true,
    async families() {
      await requireIpvs()
      // The mode needs iptables rules, which masquerade and filter what IPVS balances.
      return finder.families()
    },
    prepare: (_node, log) => prepare(settings.ipvs, scheduler, log),
    base,
    plan: (port, node) => plan(port, node, { scheduler }),
    open: (context) => targets.open(context),
    ...(settings.counters ? { counters: () => targets.readCounters() } : {}),
  }
}

class OpenTargets {
  readonly #settings: IpvsSettings
  readonly #finder: ProgramFinder
  readonly #open = new Set<IpvsTarget>()
  readonly #totals = new PortTotals()
  /** Finding the programs is expensive, and the result is the same for both families. */
  #programs: Promise<ProgramSet> | undefined

  constructor(settings: IpvsSettings, finder: ProgramFinder) {
    this.#settings = settings
    this.#finder = finder
  }

  async open(context: OpenContext): Promise<Target<IpvsEntry>> {
    this.#programs ??= this.#finder.find(context.log)
    const programs = await this.#programs.catch((error: unknown) => {
      this.#programs = undefined
      throw error
    })
    const kernel = await IpvsNetlink.open()
    if (kernel === undefined) throw missingIpvsError()
    const { syncPeriodMs, ipvs: options } = this.#settings
    const target = new IpvsTarget({
      context,
      kernel,
      programs,
      syncPeriodMs,
      excludedCidrs: options.excludeCidrs.filter((cidr) => familyOf(cidr) === context.family),
      drainLimitMs,
      checkMs,
      onClose: () => this.#open.delete(target),
    })
    this.#open.add(target)
    return target
  }

  async readCounters(): Promise<readonly PortCounters[]> {
    // A socket of its own: a sync does not wait until ten thousand servers are read.
    const kernel = await IpvsNetlink.open()
    if (kernel === undefined) return []
    try {
      const listed = await kernel.listServers({})
      const readings = [...this.#open].flatMap((target) => target.readCounters(listed))
      return await this.#totals.report(readings, (key) => kernel.listDestinations(key, {}))
    } finally {
      kernel.close()
    }
  }
}
