// Sets up this node before any rule is programmed: the IP families to serve, connection tracking, and the OOM score.

import type { Backend, Held } from '../../backend/backend.ts'
import type { Config } from '../../config/configuration.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { checkFamilies, missingDetector } from '../../model/families.ts'
import { conntrackMax, type NodeFacts } from '../../model/node.ts'
import { platform } from '../../sys/platform/platform.ts'
import { countCpus } from '../../sys/tuning.ts'

/** Returns both families where the machine and the mode support both. Throws if the primary family is not among them. */
export async function findUsableFamilies(
  config: Config,
  backend: Pick<Backend<Held>, 'families'>,
  facts: NodeFacts,
  log: Logger,
): Promise<readonly Family[]> {
  const hasIpv6 = platform.hasIpv6()
  const supported = (await backend.families()).filter((family) => family === 4 || hasIpv6)
  const { primary } = facts.ips
  const check = {
    primary,
    supported,
    detectLocalMode: config.detectLocalMode,
    clusterCidrs: config.clusterCIDRs,
    podCidrs: facts.detectLocal.podCidrs,
    nodePortAddresses: config.nodePortAddresses,
    excludeCidrs: config.ipvs.excludeCIDRs,
    healthzBindAddress: config.healthzBindAddress,
    metricsBindAddress: config.metricsBindAddress,
  }
  const { warnings, fatal } = checkFamilies(check)
  for (const warning of warnings) log.warn(warning)
  if (fatal.length > 0) throw new ProxyError('config', fatal.join('; '))
  const undetected = missingDetector(check)
  if (undetected !== undefined) log.info(undetected)
  if (facts.ips[primary] === '127.0.0.1' || facts.ips[primary] === '::1') {
    log.warn("This node's address is unknown; set bindAddress (--bind-address) if its Node has no address")
  }
  return supported
}

export function tuneConnectionTracking({ conntrack }: Config, log: Logger): void {
  const changed = platform.tuneConntrack({
    max: conntrackMax({ maxPerCore: conntrack.maxPerCore, min: conntrack.min, cpus: countCpus() }),
    tcpEstablishedMs: conntrack.tcpEstablishedTimeout,
    tcpCloseWaitMs: conntrack.tcpCloseWaitTimeout,
    tcpBeLiberal: conntrack.tcpBeLiberal,
    udpMs: conntrack.udpTimeout,
    udpStreamMs: conntrack.udpStreamTimeout,
  })
  if (changed.length > 0) log.info('Tuned connection tracking', { changed: changed.join(' ') })
}

/** A failure is only logged: without the proxy updates stop, but traffic goes on. */
export function protectFromOom(score: number, log: Logger): void {
  try {
    platform.setOomScore(score)
  } catch (error) {
    log.v(2, 'Cannot set the OOM score', { error: describeError(error) })
  }
}
