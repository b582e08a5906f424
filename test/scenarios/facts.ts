// A scenario's node as the model wants to hear of it: for every runner that drives our own code.

import { type Family, familyOf } from '../../src/lib/ip.ts'
import { type DetectLocal, detectNodeIps, makeNodeView, type NodeFacts } from '../../src/model/node.ts'
import type { NodeView } from '../../src/model/types.ts'
import type { Detector, NodeSettings } from './format.ts'

/** `interfaceAddresses`: what the machine has; by default what the scenario says, and loopback. */
export function nodeFacts(settings: NodeSettings, interfaceAddresses?: readonly string[]): NodeFacts {
  return {
    name: settings.name,
    zone: settings.zone,
    ips: detectNodeIps(settings.primary, ''),
    nodePortAddresses: settings.nodePortAddresses,
    interfaceAddresses: interfaceAddresses ?? ['127.0.0.1', '::1', ...settings.addresses],
    detectLocal: detectLocal(settings.detector),
    masqueradeAll: settings.masqueradeAll,
    masqueradeBit: 14,
    serviceCidrs: settings.serviceCIDRs,
    externalIps: settings.externalIPs,
  }
}

export function nodeView(settings: NodeSettings, family: Family, interfaceAddresses?: readonly string[]): NodeView {
  return makeNodeView(nodeFacts(settings, interfaceAddresses), family)
}

/** The node's addresses of one family. */
export const addressesOf = (settings: NodeSettings, family: Family): readonly string[] =>
  settings.addresses.filter((ip) => familyOf(ip) === family)

function detectLocal(detector: Detector): DetectLocal {
  const unset: DetectLocal = {
    mode: 'ClusterCIDR',
    clusterCidrs: [],
    podCidrs: [],
    bridgeInterface: '',
    interfaceNamePrefix: '',
  }
  if (detector === 'none') return unset
  if ('cidrs' in detector) return { ...unset, clusterCidrs: detector.cidrs }
  if ('interface' in detector) return { ...unset, mode: 'BridgeInterface', bridgeInterface: detector.interface }
  return { ...unset, mode: 'InterfaceNamePrefix', interfaceNamePrefix: detector.prefix }
}
