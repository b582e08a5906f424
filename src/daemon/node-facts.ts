// What is known of this node before anything is programmed: configuration, Node object and interfaces in one record.

import type { Config } from '../config/configuration.ts'
import { featureEnabled } from '../config/gates.ts'
import { canonicalIp } from '../lib/ip.ts'
import { detectNodeIps, type NodeFacts, nodeAddresses } from '../model/node.ts'
import type { NodeRecord } from '../model/types.ts'

export interface Machine {
  readonly name: string
  /** Undefined if there is no such Node. */
  readonly record: NodeRecord | undefined
  readonly interfaceAddresses: readonly string[]
}

export function nodeFacts(config: Config, { name, record, interfaceAddresses }: Machine): NodeFacts {
  return {
    name,
    zone: record?.zone ?? '',
    ips: detectNodeIps(nodeAddresses(record), canonicalIp(config.bindAddress) ?? ''),
    nodePortAddresses: config.nodePortAddresses,
    interfaceAddresses,
    detectLocal: {
      mode: config.detectLocalMode,
      clusterCidrs: config.clusterCIDRs,
      podCidrs: record?.podCidrs ?? [],
      ...config.detectLocal,
    },
    masqueradeAll: config.masqueradeAll,
    masqueradeBit: config.masqueradeBit,
    serviceCidrs: [],
    externalIps: featureEnabled(config, 'AllowServiceExternalIPs'),
  }
}
