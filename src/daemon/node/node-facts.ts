// Combines the configuration, the Node object and the interface addresses into the facts that node views are made of. Pure.

import type { Config } from '../../config/configuration.ts'
import { isFeatureEnabled } from '../../config/gates.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, splitHostPort } from '../../lib/ip.ts'
import { detectNodeIps, type NodeFacts, nodeAddresses } from '../../model/node.ts'
import type { ReservedSocket } from '../../model/reserved-addresses.ts'
import type { NodeRecord } from '../../model/types.ts'

/** The name that EndpointSlices use for this node. If it differs from the Node's name, no endpoint is local. */
export function chooseNodeName({ hostnameOverride }: Config, hostname: string): string {
  const name = (hostnameOverride || hostname).trim().toLowerCase()
  if (name === '') throw new ProxyError('config', 'the host name is empty: give --hostname-override')
  return name
}

export interface Machine {
  readonly name: string
  /** Undefined if the Node does not exist. */
  readonly record: NodeRecord | undefined
  readonly interfaceAddresses: readonly string[]
}

export function makeNodeFacts(config: Config, { name, record, interfaceAddresses }: Machine): NodeFacts {
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
    externalIps: isFeatureEnabled(config, 'AllowServiceExternalIPs'),
    listeners: listOwnListeners(config),
    apiServers: [],
  }
}

/** The sockets that this proxy listens on, and that no service may take. */
function listOwnListeners({ healthzBindAddress, metricsBindAddress }: Config): readonly ReservedSocket[] {
  const named = [
    { address: healthzBindAddress, holder: 'the health server of this proxy' },
    { address: metricsBindAddress, holder: 'the metrics server of this proxy' },
  ]
  return named.flatMap(({ address, holder }) => {
    const { host, port } = splitHostPort(address) ?? { host: '', port: 0 }
    const ip = host === '' ? '0.0.0.0' : canonicalIp(host)
    return ip === undefined || port === 0 ? [] : [{ ip, port, holder }]
  })
}
