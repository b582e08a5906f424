// The node of the scenarios: the network of kube-proxy's own packet tests, with the changes of a scenario.

import type { Family } from '../../src/lib/ip.ts'
import { nodeName } from './expand.ts'
import type { Detector, Mode, NodeSettings } from './format.ts'
import { type Json, toIpv6 } from './twins.ts'

/** The settings of the node that a file changes, for all modes or for one. */
export interface NodePatch extends Partial<Omit<NodeSettings, 'name'>> {
  readonly nftables?: Partial<NodeSettings>
  readonly iptables?: Partial<NodeSettings>
  readonly ipvs?: Partial<NodeSettings>
  readonly userspace?: Partial<NodeSettings>
}

const common: NodeSettings = {
  name: nodeName,
  zone: 'zone-a',
  primary: ['192.168.0.2'],
  addresses: ['192.168.0.2', '192.168.1.2', '192.168.99.11'],
  detector: { cidrs: ['10.0.0.0/8'] },
  nodePortAddresses: [],
  localhostNodePorts: false,
  masqueradeAll: false,
  serviceCIDRs: ['172.30.0.0/16'],
  apiServers: [],
  externalIPs: true,
}

const byMode: Readonly<Record<Mode, Partial<NodeSettings>>> = {
  nftables: { nodePortAddresses: ['192.168.0.2/32'] },
  iptables: { localhostNodePorts: true },
  ipvs: {},
  userspace: {},
}

/** Later patches win, and in a patch the settings for one mode win over those for all. */
export function nodeSettings(mode: Mode, families: readonly Family[], patches: readonly NodePatch[]): NodeSettings {
  let settings: NodeSettings = { ...common, ...byMode[mode] }
  for (const patch of patches) {
    const { nftables: _1, iptables: _2, ipvs: _3, userspace: _4, ...all } = patch
    settings = { ...settings, ...all, ...patch[mode] }
  }
  const twin = toIpv6(settings as unknown as Json) as unknown as NodeSettings
  if (families.length === 2) return merge(settings, twin)
  return families[0] === 6 ? twin : settings
}

function merge(a: NodeSettings, b: NodeSettings): NodeSettings {
  return {
    ...a,
    primary: [...a.primary, ...b.primary],
    addresses: [...a.addresses, ...b.addresses],
    detector: mergeDetectors(a.detector, b.detector),
    nodePortAddresses: [...a.nodePortAddresses, ...b.nodePortAddresses],
    serviceCIDRs: [...a.serviceCIDRs, ...b.serviceCIDRs],
    apiServers: [...a.apiServers, ...b.apiServers],
  }
}

function mergeDetectors(a: Detector, b: Detector): Detector {
  if (a === 'none' || b === 'none' || !('cidrs' in a) || !('cidrs' in b)) return a
  return { cidrs: [...a.cidrs, ...b.cidrs] }
}
