// The iptables data plane as the engine sees it: kube-proxy's own rules, chain for chain.

import { ensureSysctl } from '../../sys/sysctl.ts'
import type { Backend, Settings } from '../backend.ts'
import { findPrograms, findUsableFamilies } from '../iptables-kit/flavour.ts'
import type { ProgramSet } from '../iptables-kit/programs.ts'
import { base, servesLocalhost } from './base.ts'
import { type IptablesEntry, splitEntry } from './entries.ts'
import { plan } from './plan.ts'
import { IptablesTarget } from './target.ts'

export type IptablesSettings = Pick<Settings, 'syncPeriodMs' | 'localhostNodePorts'>

export function iptables(settings: IptablesSettings): Backend<IptablesEntry> {
  const { localhostNodePorts, syncPeriodMs } = settings
  let found: Promise<ProgramSet> | undefined
  return {
    name: 'iptables',
    periodic: false,
    families: () => findUsableFamilies('iptables'),
    async prepare(node, log) {
      if (!servesLocalhost(node, localhostNodePorts)) return
      if (ensureSysctl('net/ipv4/conf/all/route_localnet', 1)) {
        log.info('Set route_localnet for node ports on 127.0.0.1; --iptables-localhost-nodeports=false avoids it')
      }
    },
    base: (node) => base(node, localhostNodePorts),
    plan: (port, node) => plan(port, node, { localhost: servesLocalhost(node, localhostNodePorts) }),
    parts: splitEntry,
    async open(context) {
      found ??= findPrograms(context.log)
      const programs = await found
      const { flavour, version } = programs
      context.log.info('Using iptables', { family: context.family, flavour, version: version.join('.') })
      return new IptablesTarget({ context, programs, syncPeriodMs })
    },
  }
}
