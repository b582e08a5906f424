// The iptables data plane as the engine sees it: kube-proxy's own rules, chain for chain.

import type { Family } from '../../lib/ip.ts'
import { silentLogger } from '../../lib/log.ts'
import { ensureSysctl } from '../../sys/sysctl.ts'
import type { Backend, PortCounters, Settings } from '../backend.ts'
import { ProgramFinder } from '../iptables-kit/program-finder.ts'
import type { ProgramSet } from '../iptables-kit/programs.ts'
import { RuleCheck } from '../iptables-kit/rule-check.ts'
import { base, servesLocalhost } from './base.ts'
import { checkPart } from './check.ts'
import { type IptablesEntry, splitEntry } from './entries.ts'
import { plan } from './plan.ts'
import { IptablesTarget } from './target.ts'

export type IptablesSettings = Pick<Settings, 'syncPeriodMs' | 'localhostNodePorts' | 'counters'>

export function iptables(settings: IptablesSettings): Backend<IptablesEntry> {
  const { localhostNodePorts, syncPeriodMs, counters } = settings
  const targets = new Map<Family, IptablesTarget>()
  const finder = new ProgramFinder('iptables')
  let found: Promise<ProgramSet> | undefined
  return {
    name: 'iptables',
    periodic: false,
    families: () => finder.families(),
    async prepare(node, log) {
      if (!servesLocalhost(node, localhostNodePorts)) return
      if (ensureSysctl('net/ipv4/conf/all/route_localnet', 1)) {
        log.info('Set route_localnet for node ports on 127.0.0.1; iptables.localhostNodePorts: false avoids it')
      }
    },
    base: (node) => base(node, localhostNodePorts),
    plan: (port, node) => plan(port, node, { localhost: servesLocalhost(node, localhostNodePorts) }),
    parts: splitEntry,
    async openCheck(node, signal) {
      found ??= finder.find(silentLogger)
      const rules = await RuleCheck.read(await found, node.family, signal)
      return {
        presence: (part) => checkPart(rules, part),
        adaptCommand: (command) => rules.adaptCommand(command),
      }
    },
    async open(context) {
      found ??= finder.find(context.log)
      const programs = await found
      const { flavour, version } = programs
      context.log.info('Using iptables', { family: context.family, flavour, version: version.join('.') })
      const target = new IptablesTarget({ context, programs, syncPeriodMs, counters })
      targets.set(context.family, target)
      return target
    },
    ...(counters ? { counters: () => readCounters([...targets.values()]) } : {}),
  }
}

async function readCounters(targets: readonly IptablesTarget[]): Promise<readonly PortCounters[]> {
  const found: PortCounters[] = []
  for (const target of targets) found.push(...(await target.readCounters()))
  return found
}
