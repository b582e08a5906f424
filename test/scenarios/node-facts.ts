// Converts the node of a scenario to the facts and views of the model, for runners of our own code.

import { type Family, familyOf, splitHostPort } from '../../src/lib/ip.ts'
import { type DetectLocal, detectNodeIps, makeNodeView, type NodeFacts } from '../../src/model/node.ts'
import type { NodeView } from '../../src/model/types.ts'
import type { Detector, NodeSettings } from './format.ts'

/** `interfaceAddresses` are the addresses of the machine; by default those of the scenario, and loopback. */
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
    listeners: [{ ip: '0.0.0.0', port: 10256, holder: 'the health server of this proxy' }],
    apiServers: settings.apiServers.flatMap((text) => {
      const { host, port } = splitHostPort(text) ?? { host: '', port: 0 }
      return host === '' ? [] : [{ ip: host, port }]
    }),
  }
}

export function nodeView(settings: NodeSettings, family: Family, interfaceAddresses?: readonly string[]): NodeView {
  return makeNodeView(nodeFacts(settings, interfaceAddresses), family)
}

/** Returns the addresses of the node in one family. */
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
