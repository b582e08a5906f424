// The userspace mode: its parts put together. We end the clients' connections ourselves; iptables only leads them to us.

import { ProxyError } from '../../lib/errors.ts'
import { type Family, isLoopback } from '../../lib/ip.ts'
import type { Backend, Settings } from '../backend.ts'
import { findPrograms, usableFamilies } from '../iptables-kit/flavour.ts'
import type { ProgramSet } from '../iptables-kit/programs.ts'
import type { UserspaceEntry } from './entries.ts'
import { FdBudget, raiseOpenFileLimit } from './fd-budget.ts'
import { base, plan } from './plan.ts'
import { UserspaceTarget } from './target.ts'

export function userspace(settings: Pick<Settings, 'syncPeriodMs' | 'userspace'>): Backend<UserspaceEntry> {
  const budget = new FdBudget()
  const targets = new Map<Family, UserspaceTarget>()
  let found: Promise<ProgramSet> | undefined
  /** Of the process, not of a family. */
  let raised: Promise<void> | undefined
  return {
    name: 'userspace',
    // As it always was; it is also what keeps the figures of relays fresh.
    periodic: true,
    families: () => usableFamilies('userspace'),
    prepare(_node, log) {
      raised ??= raiseOpenFileLimit(log)
      return raised
    },
    base,
    plan,
    async open(context) {
      const { bindAddress } = settings.userspace
      if (isLoopback(bindAddress)) {
        throw new ProxyError('config', `bindAddress ${bindAddress} is loopback: nobody can be redirected to it`)
      }
      found ??= findPrograms(context.log)
      const programs = await found
      const { flavour, version } = programs
      context.log.info('using iptables', { family: context.family, flavour, version: version.join('.') })
      const target = new UserspaceTarget({ context, programs, budget, settings })
      targets.set(context.family, target)
      return target
    },
    answers: (family, id, ip, port) => targets.get(family)?.answers(id, ip, port) === true,
  }
}
