// The iptables data plane as the engine sees it: kube-proxy's own rules, chain for chain.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { silentLogger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import { ensureSysctl } from '../../sys/sysctl.ts'
import type { Backend, Settings } from '../backend.ts'
import { base, servesLocalhost } from './base.ts'
import type { IptEntry } from './entries.ts'
import { plan } from './plan.ts'
import { IptablesTarget } from './target.ts'
import { findPrograms, type Programs, programName, Tools } from './tools.ts'

export type IptablesSettings = Pick<Settings, 'syncPeriodMs' | 'localhostNodePorts'>

export function iptables(settings: IptablesSettings): Backend<IptEntry> {
  const { localhostNodePorts, syncPeriodMs } = settings
  let found: Promise<Programs> | undefined
  return {
    name: 'iptables',
    periodic: false,
    families: () => usableFamilies(findPrograms(silentLogger)),
    async prepare(node, log) {
      if (!servesLocalhost(node, localhostNodePorts)) return
      if (ensureSysctl('net/ipv4/conf/all/route_localnet', 1)) {
        log.info('set route_localnet, for node ports on 127.0.0.1; --iptables-localhost-nodeports=false avoids it')
      }
    },
    base: (node) => base(node, localhostNodePorts),
    plan: (port, node) => plan(port, node, { localhost: servesLocalhost(node, localhostNodePorts) }),
    async open(context) {
      found ??= findPrograms(context.log)
      const programs = await found
      const { flavour, version } = programs
      context.log.info('using iptables', { family: context.family, flavour, version: version.join('.') })
      return new IptablesTarget({ context, programs, syncPeriodMs })
    },
  }
}

/** Those in which the nat table can be read. */
export async function usableFamilies(found: Promise<Programs>): Promise<readonly Family[]> {
  const programs = await found
  const problems: string[] = []
  const usable: Family[] = []
  for (const family of [4, 6] as const) {
    const tools = new Tools({ programs, family, log: silentLogger, clock: systemClock, patienceMs: 30_000 })
    try {
      if (await tools.ask(['-S', 'POSTROUTING', '-t', 'nat'])) usable.push(family)
      else problems.push(`${programName(family)} cannot read the nat table`)
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      problems.push(error.message)
    }
  }
  if (usable.length > 0) return usable
  throw new ProxyError('iptables-unusable', `iptables does not work here: ${problems.join('; ')}`)
}
