// Checks whether the configuration fits the IP families of this node: sentences for the log, and which of them prevent the start. Pure.

import { type Family, familyName, familyOf, isUnspecified, splitHostPort } from '../lib/ip.ts'
import { cidrsOf, type DetectLocalMode, localDetector } from './node.ts'

export interface FamilyFacts {
  readonly primary: Family
  /** The families that the machine and the mode can serve. */
  readonly supported: readonly Family[]
  readonly detectLocalMode: DetectLocalMode
  readonly clusterCidrs: readonly string[]
  readonly podCidrs: readonly string[]
  /** As configured. Keywords fit every family. */
  readonly nodePortAddresses: readonly string[]
  readonly excludeCidrs: readonly string[]
  /** `ip:port`, or ''. */
  readonly healthzBindAddress: string
  readonly metricsBindAddress: string
  /** winkernel.sourceVip, canonical or ''. */
  readonly sourceVip?: string
}

export interface Findings {
  /** Sentences for the log; the proxy starts. */
  readonly warnings: readonly string[]
  /** Sentences that prevent the start. */
  readonly fatal: readonly string[]
}

export function checkFamilies(facts: FamilyFacts): Findings {
  const warnings: string[] = []
  const fatal: string[] = []
  const { primary } = facts
  const wrong: Family = primary === 4 ? 6 : 4
  const dualStack = facts.supported.length > 1
  const cluster = `the node is ${familyName(primary)}-${dualStack ? 'primary' : 'only'}`
  const onlyWrong = (list: readonly string[]) => cidrsOf(list, wrong).length > 0 && cidrsOf(list, primary).length === 0
  const mismatch = (field: string, stops = false) => {
    const found = `${field} has only ${familyName(wrong)} entries, but ${cluster}`
    if (stops) fatal.push(found)
    else warnings.push(found)
  }

  if (!facts.supported.includes(primary)) {
    fatal.push(`the node's primary family is ${familyName(primary)}, which this machine cannot serve in this mode`)
  }
  warnings.push(...checkNodePorts(facts))
  if (onlyWrong(facts.clusterCidrs)) mismatch('clusterCIDR', facts.detectLocalMode === 'ClusterCIDR' && !dualStack)
  if (onlyWrong(facts.nodePortAddresses)) mismatch('nodePortAddresses')
  if (onlyWrong(facts.podCidrs)) mismatch('spec.podCIDRs of the Node', facts.detectLocalMode === 'NodeCIDR')
  if (facts.sourceVip !== undefined && facts.sourceVip !== '' && familyOf(facts.sourceVip) === wrong) {
    mismatch('winkernel.sourceVip')
  }
  if (!dualStack) {
    if (onlyWrong(facts.excludeCidrs)) mismatch('ipvs.excludeCIDRs')
    if (bindsOnly(facts.healthzBindAddress, wrong)) mismatch('healthzBindAddress')
    if (bindsOnly(facts.metricsBindAddress, wrong)) mismatch('metricsBindAddress')
  }
  return { warnings, fatal }
}

function checkNodePorts(facts: FamilyFacts): readonly string[] {
  const list = facts.nodePortAddresses
  if (list.length === 0) {
    return ['nodePortAddresses is not set: node ports answer on every address of the node; consider "primary"']
  }
  const other: Family = facts.primary === 4 ? 6 : 4
  const keywords = list.some((item) => item === 'primary' || item === 'localhost' || item === 'all')
  const onlyPrimary = !keywords && cidrsOf(list, facts.primary).length > 0 && cidrsOf(list, other).length === 0
  const dualStackConfig = [facts.clusterCidrs, facts.podCidrs, facts.excludeCidrs].some(
    (cidrs) => cidrsOf(cidrs, 4).length > 0 && cidrsOf(cidrs, 6).length > 0,
  )
  if (!onlyPrimary || !dualStackConfig) return []
  return [
    `nodePortAddresses has only ${familyName(facts.primary)} entries although the configuration is dual-stack: ` +
      `${familyName(other)} node ports answer on every address of the node`,
  ]
}

/** True for a specific address of that family; a wildcard address listens on both families. */
function bindsOnly(address: string, family: Family): boolean {
  const host = splitHostPort(address)?.host ?? address
  return host !== '' && !isUnspecified(host) && familyOf(host) === family
}

/** Returns a sentence if local traffic is detected by CIDR and the primary family has no CIDR. */
export function missingDetector(facts: FamilyFacts): string | undefined {
  const { detectLocalMode: mode, clusterCidrs, podCidrs, primary } = facts
  if (mode !== 'ClusterCIDR' && mode !== 'NodeCIDR') return undefined
  const detect = { mode, clusterCidrs, podCidrs, bridgeInterface: '', interfaceNamePrefix: '' }
  if (localDetector(detect, primary) !== undefined) return undefined
  const field = mode === 'ClusterCIDR' ? 'clusterCIDR' : 'spec.podCIDRs of the Node'
  return `no ${familyName(primary)} entry in ${field}: traffic of local pods cannot be detected`
}
