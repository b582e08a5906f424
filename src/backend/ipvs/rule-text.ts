// The iptables rules of the ipvs mode as input of iptables-restore: kube-proxy's, and a few of our own. Pure.
//
// Everything that depends on services is in sets, so the rules change only with the node, and a service costs no rule. kube-proxy writes
// a rule only while its set has members; an empty set matches nothing, so the effect is the same.

import type { Family } from '../../lib/ip.ts'
import type { LocalDetector, NodeView } from '../../model/types.ts'
import { type SetName, setComment, setName } from './set-definitions.ts'

export type RuleTableName = 'nat' | 'filter' | 'mangle'

export const chains: Readonly<Record<RuleTableName, readonly string[]>> = {
  nat: ['KUBE-SERVICES', 'KUBE-POSTROUTING', 'KUBE-NODE-PORT', 'KUBE-LOAD-BALANCER', 'KUBE-MARK-MASQ'],
  filter: [
    'KUBE-FORWARD',
    'KUBE-NODE-PORT',
    'KUBE-PROXY-FIREWALL',
    'KUBE-SOURCE-RANGES-FIREWALL',
    'KUBE-IPVS-FILTER',
    'KUBE-IPVS-OUT-FILTER',
  ],
  mangle: ['SLUICE-IPVS-OUTPUT', 'SLUICE-SOURCE-RANGES'],
}

export interface IpvsJump {
  readonly table: RuleTableName
  readonly from: string
  readonly to: string
  readonly comment: string
}

/** In the order they are prepended: the last comes first in its chain. */
export const jumps: readonly IpvsJump[] = [
  { table: 'nat', from: 'OUTPUT', to: 'KUBE-SERVICES', comment: 'kubernetes service portals' },
  { table: 'nat', from: 'PREROUTING', to: 'KUBE-SERVICES', comment: 'kubernetes service portals' },
  { table: 'nat', from: 'POSTROUTING', to: 'KUBE-POSTROUTING', comment: 'kubernetes postrouting rules' },
  { table: 'filter', from: 'FORWARD', to: 'KUBE-FORWARD', comment: 'kubernetes forwarding rules' },
  { table: 'filter', from: 'INPUT', to: 'KUBE-NODE-PORT', comment: 'kubernetes health check rules' },
  { table: 'filter', from: 'INPUT', to: 'KUBE-PROXY-FIREWALL', comment: 'kube-proxy firewall rules' },
  { table: 'filter', from: 'FORWARD', to: 'KUBE-PROXY-FIREWALL', comment: 'kube-proxy firewall rules' },
  { table: 'filter', from: 'INPUT', to: 'KUBE-IPVS-FILTER', comment: 'kubernetes ipvs access filter' },
  { table: 'filter', from: 'OUTPUT', to: 'KUBE-IPVS-OUT-FILTER', comment: 'kubernetes ipvs access filter' },
  { table: 'mangle', from: 'OUTPUT', to: 'SLUICE-IPVS-OUTPUT', comment: 'kubernetes ipvs access filter' },
]

/** As iptables-save prints it. */
export const savedJump = ({ from, to, comment }: IpvsJump): string =>
  `-A ${from} -m comment --comment "${comment}" -j ${to}`

export function rulesText(node: NodeView): string {
  const { family } = node
  const text = { nat: natRules(node), filter: filterRules(node), mangle: mangleRules(family) }
  return (['nat', 'filter', 'mangle'] as const)
    .map((table) => {
      const declared = chains[table].map((chain) => `:${chain} - [0:0]`)
      return `${[`*${table}`, ...declared, ...text[table], 'COMMIT'].join('\n')}\n`
    })
    .join('')
}

function natRules(node: NodeView): readonly string[] {
  const { family } = node
  const { on, silent } = matchers(family)
  const mark = hexMark(node.masqueradeMark)
  const fromNode = '-m addrtype --src-type LOCAL'
  const localNodePort = (protocol: string, set: SetName, fields: string) => [
    // The node's own packets may have a service address as their source, to which no other node would answer.
    `-A KUBE-NODE-PORT -p ${protocol} ${on(set, fields)} ${fromNode} -j KUBE-MARK-MASQ`,
    `-A KUBE-NODE-PORT -p ${protocol} ${on(set, fields)} -j RETURN`,
  ]
  const accepted = (set: SetName) => [
    `-A KUBE-SERVICES ${on(set, 'dst,dst')} -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT`,
    `-A KUBE-SERVICES ${on(set, 'dst,dst')} -m addrtype --dst-type LOCAL -j ACCEPT`,
  ]
  return [
    `-A KUBE-SERVICES -s ${family === 4 ? '127.0.0.0/8' : '::1/128'} -j RETURN`,
    `-A KUBE-POSTROUTING ${on('KUBE-LOOP-BACK', 'dst,dst,src')} -j MASQUERADE`,
    `-A KUBE-SERVICES ${on('KUBE-LOAD-BALANCER', 'dst,dst')} -j KUBE-LOAD-BALANCER`,
    `-A KUBE-LOAD-BALANCER ${on('KUBE-LOAD-BALANCER-LOCAL', 'dst,dst')} ${fromNode} -j KUBE-MARK-MASQ`,
    `-A KUBE-LOAD-BALANCER ${on('KUBE-LOAD-BALANCER-LOCAL', 'dst,dst')} -j RETURN`,
    ...localNodePort('tcp', 'KUBE-NODE-PORT-LOCAL-TCP', 'dst'),
    `-A KUBE-NODE-PORT -p tcp ${on('KUBE-NODE-PORT-TCP', 'dst')} -j KUBE-MARK-MASQ`,
    ...localNodePort('udp', 'KUBE-NODE-PORT-LOCAL-UDP', 'dst'),
    `-A KUBE-NODE-PORT -p udp ${on('KUBE-NODE-PORT-UDP', 'dst')} -j KUBE-MARK-MASQ`,
    ...localNodePort('sctp', 'KUBE-NODE-PORT-LOCAL-SCTP-HASH', 'dst,dst'),
    `-A KUBE-NODE-PORT -p sctp ${on('KUBE-NODE-PORT-SCTP-HASH', 'dst,dst')} -j KUBE-MARK-MASQ`,
    clusterIpMark(node),
    `-A KUBE-SERVICES ${on('KUBE-EXTERNAL-IP', 'dst,dst')} -j KUBE-MARK-MASQ`,
    ...accepted('KUBE-EXTERNAL-IP'),
    `-A KUBE-SERVICES ${on('KUBE-EXTERNAL-IP-LOCAL', 'dst,dst')} ${fromNode} -j KUBE-MARK-MASQ`,
    ...accepted('KUBE-EXTERNAL-IP-LOCAL'),
    // Before the node ports, unlike kube-proxy's: a cluster IP with the port number of a node port is none.
    `-A KUBE-SERVICES ${silent('KUBE-CLUSTER-IP', 'dst,dst')} -j ACCEPT`,
    `-A KUBE-SERVICES ${silent('KUBE-LOAD-BALANCER', 'dst,dst')} -j ACCEPT`,
    '-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT',
    '-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ',
    `-A KUBE-POSTROUTING -m mark ! --mark ${mark}/${mark} -j RETURN`,
    `-A KUBE-POSTROUTING -j MARK --xor-mark ${mark}`,
    '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
    `-A KUBE-MARK-MASQ -j MARK --or-mark ${mark}`,
  ]
}

/** Without a detector: only what the node sends from a cluster IP itself, which it does as it has all of them. */
function clusterIpMark(node: NodeView): string {
  const { on } = matchers(node.family)
  if (node.masqueradeAll) return `-A KUBE-SERVICES ${on('KUBE-CLUSTER-IP', 'dst,dst')} -j KUBE-MARK-MASQ`
  if (node.local === undefined) return `-A KUBE-SERVICES ${on('KUBE-CLUSTER-IP', 'src,dst')} -j KUBE-MARK-MASQ`
  return `-A KUBE-SERVICES ${on('KUBE-CLUSTER-IP', 'dst,dst')} ${notFromPods(node.local)} -j KUBE-MARK-MASQ`
}

function filterRules(node: NodeView): readonly string[] {
  const { on, silent } = matchers(node.family)
  const mark = hexMark(node.masqueradeMark)
  const fresh = '-m conntrack --ctstate NEW'
  const pods = node.local === undefined ? '' : ` ${notFromPods(node.local)}`
  const known: readonly (readonly [SetName, string])[] = [
    ['KUBE-LOAD-BALANCER', 'dst,dst'],
    ['KUBE-CLUSTER-IP', 'dst,dst'],
    ['KUBE-EXTERNAL-IP', 'dst,dst'],
    ['KUBE-EXTERNAL-IP-LOCAL', 'dst,dst'],
    ['KUBE-HEALTH-CHECK-NODE-PORT', 'dst'],
  ]
  return [
    `-A KUBE-PROXY-FIREWALL ${fresh} ${on('SLUICE-DROP-INTERNAL', 'dst,dst')} -j DROP`,
    `-A KUBE-PROXY-FIREWALL ${fresh} ${on('SLUICE-DROP-EXTERNAL', 'dst,dst')}${pods} -m addrtype ! --src-type LOCAL -j DROP`,
    `-A KUBE-PROXY-FIREWALL ${on('KUBE-LOAD-BALANCER-FW', 'dst,dst')} -j KUBE-SOURCE-RANGES-FIREWALL`,
    `-A KUBE-SOURCE-RANGES-FIREWALL ${on('KUBE-LOAD-BALANCER-SOURCE-CIDR', 'dst,dst,src')} -j RETURN`,
    `-A KUBE-SOURCE-RANGES-FIREWALL ${on('KUBE-LOAD-BALANCER-SOURCE-IP', 'dst,dst,src')} -j RETURN`,
    '-A KUBE-SOURCE-RANGES-FIREWALL -j DROP',
    `-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark ${mark}/${mark} -j ACCEPT`,
    '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
    `-A KUBE-NODE-PORT ${on('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')} -j ACCEPT`,
    ...known.map(([set, fields]) => `-A KUBE-IPVS-FILTER ${silent(set, fields)} -j RETURN`),
    `-A KUBE-IPVS-FILTER ${fresh} ${silent('KUBE-IPVS-IPS', 'dst')} -j REJECT`,
  ]
}

/** The node's own packets: IPVS takes them before the filter table sees them, but after mangle. */
function mangleRules(family: Family): readonly string[] {
  const { on } = matchers(family)
  return [
    `-A SLUICE-IPVS-OUTPUT -m conntrack --ctstate NEW ${on('SLUICE-DROP-INTERNAL', 'dst,dst')} -j DROP`,
    `-A SLUICE-IPVS-OUTPUT ${on('KUBE-LOAD-BALANCER-FW', 'dst,dst')} -j SLUICE-SOURCE-RANGES`,
    `-A SLUICE-SOURCE-RANGES ${on('KUBE-LOAD-BALANCER-SOURCE-CIDR', 'dst,dst,src')} -j RETURN`,
    `-A SLUICE-SOURCE-RANGES ${on('KUBE-LOAD-BALANCER-SOURCE-IP', 'dst,dst,src')} -j RETURN`,
    '-A SLUICE-SOURCE-RANGES -j DROP',
  ]
}

function matchers(family: Family) {
  const silent = (set: SetName, fields: string) => `-m set --match-set ${setName(set, family)} ${fields}`
  return {
    silent,
    on: (set: SetName, fields: string) => `-m comment --comment "${setComment(set)}" ${silent(set, fields)}`,
  }
}

function notFromPods(detector: LocalDetector): string {
  if (detector.kind === 'cidr') return `! -s ${detector.cidr}`
  return `! -i ${detector.kind === 'interface' ? detector.name : `${detector.prefix}+`}`
}

const hexMark = (mark: number): string => `0x${mark.toString(16).padStart(8, '0')}`
