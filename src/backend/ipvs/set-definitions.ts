// The names, types and comments of the ipsets: kube-proxy's and two of our own. Their members in the kernel are in kernel/ipsets.ts. Pure.

import type { Family } from '../../lib/ip.ts'
import type { SetSpec, SetType } from '../../sys/netlink/ipset.ts'

interface SetDefinition {
  readonly type: SetType
  /** Written into the rules that use the set. */
  readonly comment: string
}

const definitions = {
  'KUBE-LOOP-BACK': {
    type: 'hash:ip,port,ip',
    comment: 'Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose',
  },
  'KUBE-CLUSTER-IP': {
    type: 'hash:ip,port',
    comment: 'Kubernetes service cluster ip + port for masquerade purpose',
  },
  'KUBE-EXTERNAL-IP': {
    type: 'hash:ip,port',
    comment: 'Kubernetes service external ip + port for masquerade and filter purpose',
  },
  'KUBE-EXTERNAL-IP-LOCAL': {
    type: 'hash:ip,port',
    comment: 'Kubernetes service external ip + port with externalTrafficPolicy=local',
  },
  'KUBE-LOAD-BALANCER': { type: 'hash:ip,port', comment: 'Kubernetes service lb portal' },
  'KUBE-LOAD-BALANCER-LOCAL': {
    type: 'hash:ip,port',
    comment: 'Kubernetes service load balancer ip + port with externalTrafficPolicy=local',
  },
  'KUBE-LOAD-BALANCER-FW': {
    type: 'hash:ip,port',
    comment: 'Kubernetes service load balancer ip + port for load balancer with sourceRange',
  },
  'KUBE-LOAD-BALANCER-SOURCE-IP': {
    type: 'hash:ip,port,ip',
    comment: 'Kubernetes service load balancer ip + port + source IP for packet filter purpose',
  },
  'KUBE-LOAD-BALANCER-SOURCE-CIDR': {
    type: 'hash:ip,port,net',
    comment: 'Kubernetes service load balancer ip + port + source cidr for packet filter purpose',
  },
  'KUBE-NODE-PORT-TCP': { type: 'bitmap:port', comment: 'Kubernetes nodeport TCP port for masquerade purpose' },
  'KUBE-NODE-PORT-LOCAL-TCP': {
    type: 'bitmap:port',
    comment: 'Kubernetes nodeport TCP port with externalTrafficPolicy=local',
  },
  'KUBE-NODE-PORT-UDP': { type: 'bitmap:port', comment: 'Kubernetes nodeport UDP port for masquerade purpose' },
  'KUBE-NODE-PORT-LOCAL-UDP': {
    type: 'bitmap:port',
    comment: 'Kubernetes nodeport UDP port with externalTrafficPolicy=local',
  },
  'KUBE-NODE-PORT-SCTP-HASH': {
    type: 'hash:ip,port',
    comment: "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
  },
  'KUBE-NODE-PORT-LOCAL-SCTP-HASH': {
    type: 'hash:ip,port',
    comment: "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
  },
  'KUBE-HEALTH-CHECK-NODE-PORT': { type: 'bitmap:port', comment: 'Kubernetes health check node port' },
  'KUBE-IPVS-IPS': { type: 'hash:ip', comment: 'Addresses on the ipvs interface' },
  // Our own, for traffic that kube-proxy drops in its other modes and lets through in its ipvs mode.
  'SLUICE-DROP-INTERNAL': {
    type: 'hash:ip,port',
    comment: 'cluster ip + port with internalTrafficPolicy=Local and no endpoint here',
  },
  'SLUICE-DROP-EXTERNAL': {
    type: 'hash:ip,port',
    comment: 'external ip + port with externalTrafficPolicy=Local and no endpoint here',
  },
} as const satisfies Readonly<Record<string, SetDefinition>>

export type IpsetName = keyof typeof definitions

/** The kernel's limit, without the NUL. */
const maxNameLength = 31

/** The name of the set in a family: IPv6 has sets of its own. */
export const setName = (name: IpsetName, family: Family): string =>
  family === 4 ? name : name.replace(/^(KUBE|SLUICE)-/, '$1-6-').slice(0, maxNameLength)

export const setComment = (name: IpsetName): string => definitions[name].comment

export const listSets = (family: Family): readonly SetSpec[] =>
  (Object.keys(definitions) as IpsetName[]).map((name) => ({
    name: setName(name, family),
    type: definitions[name].type,
    family,
  }))

/** The sets whose members name virtual servers by address and port. */
export const serverSets: readonly IpsetName[] = [
  'KUBE-CLUSTER-IP',
  'KUBE-EXTERNAL-IP',
  'KUBE-EXTERNAL-IP-LOCAL',
  'KUBE-LOAD-BALANCER',
  'KUBE-NODE-PORT-SCTP-HASH',
]
