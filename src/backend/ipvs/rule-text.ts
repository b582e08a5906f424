// Composes the iptables rules of the ipvs mode as input of iptables-restore: kube-proxy's rules, and a few of our own. Pure.
//
// Everything that depends on services is in sets, so the rules change only with the node, and a service needs no rule. kube-proxy writes
// a rule only while its set has members; an empty set matches nothing, so the effect is the same.

import type { Family } from '../../lib/ip.ts'
import type { LocalDetector, NodeView } from '../../model/types.ts'
import { type IpsetName, setComment, setName } from './set-definitions.ts'

export const ruleTables = ['nat', 'filter', 'mangle'] as const

export type RuleTableName = (typeof ruleTables)[number]

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

/** Each jump is inserted at the top of its chain, so the last one of a chain comes first. */
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

/** The jump as iptables-save prints it. */
export const printJump = ({ from, to, comment }: IpvsJump): string =>
  `-A ${from} -m comment --comment "${comment}" -j ${to}`

export function composeRules(node: NodeView): string {
  const { family } = node
  const text = { nat: composeNat(node), filter: composeFilter(node), mangle: composeMangle(family) }
  return ruleTables
    .map((table) => {
      const declared = chains[table].map((chain) => `:${chain} - [0:0]`)
      return `${[`*${table}`, ...declared, ...text[table], 'COMMIT'].join('\n')}\n`
    })
    .join('')
}

function composeNat(node: NodeView): readonly string[] {
  const { family } = node
  const { inSet, inSetWithoutComment } = setMatchers(family)
  const mark = formatMark(node.masqueradeMark)
  const fromNode = '-m addrtype --src-type LOCAL'
  const returnLocalNodePort = (protocol: string, set: IpsetName, fields: string) => [
    // The node's own packets may have a service address as their source, and no other node could answer to that.
    `-A KUBE-NODE-PORT -p ${protocol} ${inSet(set, fields)} ${fromNode} -j KUBE-MARK-MASQ`,
    `-A KUBE-NODE-PORT -p ${protocol} ${inSet(set, fields)} -j RETURN`,
  ]
  const acceptOnNode = (set: IpsetName) => [
    `-A KUBE-SERVICES ${inSet(set, 'dst,dst')} -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT`,
    `-A KUBE-SERVICES ${inSet(set, 'dst,dst')} -m addrtype --dst-type LOCAL -j ACCEPT`,
  ]
  return [
    `-A KUBE-SERVICES -s ${family === 4 ? '127.0.0.0/8' : '::1/128'} -j RETURN`,
    `-A KUBE-POSTROUTING ${inSet('KUBE-LOOP-BACK', 'dst,dst,src')} -j MASQUERADE`,
    `-A KUBE-SERVICES ${inSet('KUBE-LOAD-BALANCER', 'dst,dst')} -j KUBE-LOAD-BALANCER`,
    `-A KUBE-LOAD-BALANCER ${inSet('KUBE-LOAD-BALANCER-LOCAL', 'dst,dst')} ${fromNode} -j KUBE-MARK-MASQ`,
    `-A KUBE-LOAD-BALANCER ${inSet('KUBE-LOAD-BALANCER-LOCAL', 'dst,dst')} -j RETURN`,
    ...returnLocalNodePort('tcp', 'KUBE-NODE-PORT-LOCAL-TCP', 'dst'),
    `-A KUBE-NODE-PORT -p tcp ${inSet('KUBE-NODE-PORT-TCP', 'dst')} -j KUBE-MARK-MASQ`,
    ...returnLocalNodePort('udp', 'KUBE-NODE-PORT-LOCAL-UDP', 'dst'),
    `-A KUBE-NODE-PORT -p udp ${inSet('KUBE-NODE-PORT-UDP', 'dst')} -j KUBE-MARK-MASQ`,
    ...returnLocalNodePort('sctp', 'KUBE-NODE-PORT-LOCAL-SCTP-HASH', 'dst,dst'),
    `-A KUBE-NODE-PORT -p sctp ${inSet('KUBE-NODE-PORT-SCTP-HASH', 'dst,dst')} -j KUBE-MARK-MASQ`,
    markClusterIp(node),
    `-A KUBE-SERVICES ${inSet('KUBE-EXTERNAL-IP', 'dst,dst')} -j KUBE-MARK-MASQ`,
    ...acceptOnNode('KUBE-EXTERNAL-IP'),
    `-A KUBE-SERVICES ${inSet('KUBE-EXTERNAL-IP-LOCAL', 'dst,dst')} ${fromNode} -j KUBE-MARK-MASQ`,
    ...acceptOnNode('KUBE-EXTERNAL-IP-LOCAL'),
    // These come before the node ports, unlike kube-proxy's: a cluster IP whose port has the number of a node port is not a node port.
    `-A KUBE-SERVICES ${inSetWithoutComment('KUBE-CLUSTER-IP', 'dst,dst')} -j ACCEPT`,
    `-A KUBE-SERVICES ${inSetWithoutComment('KUBE-LOAD-BALANCER', 'dst,dst')} -j ACCEPT`,
    '-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT',
    '-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ',
    `-A KUBE-POSTROUTING -m mark ! --mark ${mark}/${mark} -j RETURN`,
    `-A KUBE-POSTROUTING -j MARK --xor-mark ${mark}`,
    '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
    `-A KUBE-MARK-MASQ -j MARK --or-mark ${mark}`,
  ]
}

/** Without a detector of pods, masquerades only what the node sends from a cluster IP, which happens because all cluster IPs are on the node. */
function markClusterIp(node: NodeView): string {
  const { inSet } = setMatchers(node.family)
  if (node.masqueradeAll) return `-A KUBE-SERVICES ${inSet('KUBE-CLUSTER-IP', 'dst,dst')} -j KUBE-MARK-MASQ`
  if (node.local === undefined) return `-A KUBE-SERVICES ${inSet('KUBE-CLUSTER-IP', 'src,dst')} -j KUBE-MARK-MASQ`
  return `-A KUBE-SERVICES ${inSet('KUBE-CLUSTER-IP', 'dst,dst')} ${matchNonPods(node.local)} -j KUBE-MARK-MASQ`
}

function composeFilter(node: NodeView): readonly string[] {
  const { inSet, inSetWithoutComment } = setMatchers(node.family)
  const mark = formatMark(node.masqueradeMark)
  const fresh = '-m conntrack --ctstate NEW'
  const pods = node.local === undefined ? '' : ` ${matchNonPods(node.local)}`
  const known: readonly (readonly [IpsetName, string])[] = [
    ['KUBE-LOAD-BALANCER', 'dst,dst'],
    ['KUBE-CLUSTER-IP', 'dst,dst'],
    ['KUBE-EXTERNAL-IP', 'dst,dst'],
    ['KUBE-EXTERNAL-IP-LOCAL', 'dst,dst'],
    ['KUBE-HEALTH-CHECK-NODE-PORT', 'dst'],
  ]
  return [
    `-A KUBE-PROXY-FIREWALL ${fresh} ${inSet('SLUICE-DROP-INTERNAL', 'dst,dst')} -j DROP`,
    `-A KUBE-PROXY-FIREWALL ${fresh} ${inSet('SLUICE-DROP-EXTERNAL', 'dst,dst')}${pods} -m addrtype ! --src-type LOCAL -j DROP`,
    `-A KUBE-PROXY-FIREWALL ${inSet('KUBE-LOAD-BALANCER-FW', 'dst,dst')} -j KUBE-SOURCE-RANGES-FIREWALL`,
    `-A KUBE-SOURCE-RANGES-FIREWALL ${inSet('KUBE-LOAD-BALANCER-SOURCE-CIDR', 'dst,dst,src')} -j RETURN`,
    `-A KUBE-SOURCE-RANGES-FIREWALL ${inSet('KUBE-LOAD-BALANCER-SOURCE-IP', 'dst,dst,src')} -j RETURN`,
    '-A KUBE-SOURCE-RANGES-FIREWALL -j DROP',
    `-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark ${mark}/${mark} -j ACCEPT`,
    '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
    `-A KUBE-NODE-PORT ${inSet('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')} -j ACCEPT`,
    ...known.map(([set, fields]) => `-A KUBE-IPVS-FILTER ${inSetWithoutComment(set, fields)} -j RETURN`),
    `-A KUBE-IPVS-FILTER ${fresh} ${inSetWithoutComment('KUBE-IPVS-IPS', 'dst')} -j REJECT`,
  ]
}

/** For the node's own packets: IPVS takes them before the filter table sees them, but after the mangle table. */
function composeMangle(family: Family): readonly string[] {
  const { inSet } = setMatchers(family)
  return [
    `-A SLUICE-IPVS-OUTPUT -m conntrack --ctstate NEW ${inSet('SLUICE-DROP-INTERNAL', 'dst,dst')} -j DROP`,
    `-A SLUICE-IPVS-OUTPUT ${inSet('KUBE-LOAD-BALANCER-FW', 'dst,dst')} -j SLUICE-SOURCE-RANGES`,
    `-A SLUICE-SOURCE-RANGES ${inSet('KUBE-LOAD-BALANCER-SOURCE-CIDR', 'dst,dst,src')} -j RETURN`,
    `-A SLUICE-SOURCE-RANGES ${inSet('KUBE-LOAD-BALANCER-SOURCE-IP', 'dst,dst,src')} -j RETURN`,
    '-A SLUICE-SOURCE-RANGES -j DROP',
  ]
}

/** The matches against one of the sets. kube-proxy gives some of its rules the comment of the set, and others none. */
function setMatchers(family: Family) {
  const inSetWithoutComment = (set: IpsetName, fields: string) => `-m set --match-set ${setName(set, family)} ${fields}`
  return {
    inSetWithoutComment,
    inSet: (set: IpsetName, fields: string) =>
      `-m comment --comment "${setComment(set)}" ${inSetWithoutComment(set, fields)}`,
  }
}

function matchNonPods(detector: LocalDetector): string {
  if (detector.kind === 'cidr') return `! -s ${detector.cidr}`
  return `! -i ${detector.kind === 'interface' ? detector.name : `${detector.prefix}+`}`
}

const formatMark = (mark: number): string => `0x${mark.toString(16).padStart(8, '0')}`
