// The userspace mode as the engine sees it: connects its plan, targets and descriptor budget.

import { ProxyError } from '../../lib/errors.ts'
import { type Family, isLoopback } from '../../lib/ip.ts'
import { silentLogger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import type { Backend, Settings } from '../backend.ts'
import { ProgramFinder } from '../iptables-kit/program-finder.ts'
import type { ProgramSet } from '../iptables-kit/programs.ts'
import { RuleCheck } from '../iptables-kit/rule-check.ts'
import { DialReports } from '../relay/dial-reports.ts'
import { FlowReports } from '../relay/flow-reports.ts'
import { base } from './base.ts'
import { makeCheck } from './check.ts'
import type { UserspaceEntry } from './entries.ts'
import { FdBudget, raiseOpenFileLimit } from './fd-budget.ts'
import { makeRedirectedFlows } from './flows/redirected-flows.ts'
import { plan } from './plan.ts'
import { UserspaceTarget } from './target.ts'

export function userspace(
  settings: Pick<Settings, 'syncPeriodMs' | 'userspace'> & Partial<Pick<Settings, 'counters'>>,
): Backend<UserspaceEntry> {
  const budget = new FdBudget()
  const dials = new DialReports()
  const flows = new FlowReports(systemClock.now)
  const targets = new Map<Family, UserspaceTarget>()
  const finder = new ProgramFinder('userspace')
  let programsFound: Promise<ProgramSet> | undefined
  /** The limit is one of the process, so it is raised once for both families. */
  let limitRaised: Promise<void> | undefined
  return {
    name: 'userspace',
    // As kube-proxy's userspace mode did. It also keeps the figures of relays fresh.
    periodic: true,
    families: () => finder.families(),
    prepare(_node, log) {
      limitRaised ??= raiseOpenFileLimit(log)
      return limitRaised
    },
    base,
    plan,
    async open(context) {
      const { bindAddress } = settings.userspace
      if (isLoopback(bindAddress)) {
        throw new ProxyError('config', `bindAddress ${bindAddress} is loopback: no client can be redirected to it`)
      }
      programsFound ??= finder.find(context.log)
      const programs = await programsFound
      const { flavour, version } = programs
      context.log.info('Using iptables', { family: context.family, flavour, version: version.join('.') })
      const target = new UserspaceTarget({ context, programs, budget, dials, flows, settings })
      targets.set(context.family, target)
      return target
    },
    async openCheck(node, signal) {
      programsFound ??= finder.find(silentLogger)
      const rules = await RuleCheck.read(await programsFound, node.family, signal)
      const target = targets.get(node.family)
      return target === undefined ? { presence: () => 'missing' } : makeCheck(rules, target.openListeners)
    },
    dials,
    relayed: makeRedirectedFlows(flows),
    ...(settings.counters === false
      ? {}
      : { counters: async () => [...targets.values()].flatMap((target) => target.readCounters()) }),
    answers: (family, id, ip, port) => targets.get(family)?.answers(id, ip, port) === true,
  }
}
