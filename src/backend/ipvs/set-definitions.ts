// The ipsets of the ipvs mode, by the names that kube-proxy gives them, and those of our own. Pure.

import type { Family } from '../../lib/ip.ts'
import type { SetSpec, SetType } from '../../sys/netlink/ipset.ts'

interface Known {
  readonly type: SetType
  /** Said in the rules that use it. */
  readonly comment: string
}

const known = {
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
  // Ours: what kube-proxy's ipvs mode lets through where its other modes drop.
  'SLUICE-DROP-INTERNAL': {
    type: 'hash:ip,port',
    comment: 'cluster ip + port with internalTrafficPolicy=Local and no endpoint here',
  },
  'SLUICE-DROP-EXTERNAL': {
    type: 'hash:ip,port',
    comment: 'external ip + port with externalTrafficPolicy=Local and no endpoint here',
  },
} as const satisfies Readonly<Record<string, Known>>

export type SetName = keyof typeof known

/** The kernel's limit, without the NUL. */
const longestName = 31

/** The name in a family: IPv6 has its own. */
export const setName = (name: SetName, family: Family): string =>
  family === 4 ? name : name.replace(/^(KUBE|SLUICE)-/, '$1-6-').slice(0, longestName)

export const setComment = (name: SetName): string => known[name].comment

export const setsOf = (family: Family): readonly SetSpec[] =>
  (Object.keys(known) as SetName[]).map((name) => ({ name: setName(name, family), type: known[name].type, family }))

/** Whose members name virtual servers by address and port. */
export const serverSets: readonly SetName[] = [
  'KUBE-CLUSTER-IP',
  'KUBE-EXTERNAL-IP',
  'KUBE-EXTERNAL-IP-LOCAL',
  'KUBE-LOAD-BALANCER',
  'KUBE-NODE-PORT-SCTP-HASH',
]
