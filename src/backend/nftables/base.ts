// The part of the table that does not depend on services: hooks, checks, sets and maps. Pure.

import { isLoopback } from '../../lib/ip.ts'
import type { NodeView } from '../../model/types.ts'
import {
  type ChainHook,
  type ChainSpec,
  chainEntry,
  element,
  type NftEntry,
  type NftSetSpec,
  type PlannedRule,
  type Statement,
  setEntry,
} from './entries.ts'
import { addressKey, matchLocalPods, nodePortKey } from './rules.ts'

export const tableName = 'kube-proxy'

export function base(node: NodeView): readonly NftEntry[] {
  const members = node.nodePorts.all ? [] : node.nodePorts.addresses.filter((ip) => !isLoopback(ip))
  return [
    ...sets(node).map(setEntry),
    ...chains(node).map(chainEntry),
    ...members.map((ip) => element('nodeport-ips', ip)),
    ...node.apiServers.map(({ ip, port }) => element('api-servers', `${ip} tcp ${port}`)),
  ]
}

function sets(node: NodeView): readonly NftSetSpec[] {
  const verdicts = 'address . protocol . port : verdict'
  const list: NftSetSpec[] = [
    { name: 'cluster-ips', shape: 'address', comment: 'Active ClusterIPs' },
    {
      name: 'hairpin-connections',
      shape: 'address . address . protocol . port',
      comment: 'service hairpin connections',
    },
    { name: 'service-ips', shape: verdicts, comment: 'ClusterIP, ExternalIP and LoadBalancer IP traffic' },
    { name: 'service-nodeports', shape: 'protocol . port : verdict', comment: 'NodePort traffic' },
    {
      name: 'no-endpoint-services',
      shape: verdicts,
      comment: 'vmap to drop or reject packets to services with no endpoints',
    },
    {
      name: 'no-endpoint-nodeports',
      shape: 'protocol . port : verdict',
      comment: 'vmap to drop or reject packets to service nodeports with no endpoints',
    },
    {
      name: 'firewalled-ips',
      shape: 'address . protocol . port',
      comment: 'destinations with loadBalancerSourceRanges',
    },
    {
      name: 'api-servers',
      shape: 'address . protocol . port',
      comment: 'never rejected or dropped, whatever services and ServiceCIDRs say',
    },
    { name: 'firewall-allowed', shape: 'address . protocol . port . range', comment: 'who may reach firewalled-ips' },
    {
      name: 'endpoints',
      shape: 'address . protocol . port . slot : address . port',
      comment: 'endpoints by service address',
    },
    { name: 'nodeport-endpoints', shape: 'protocol . port . slot : address . port', comment: 'endpoints by node port' },
  ]
  if (!node.nodePorts.all)
    list.push({ name: 'nodeport-ips', shape: 'address', comment: 'IPs that accept NodePort traffic' })
  return list
}

/** A chain precedes the chains that jump to it. */
function chains(node: NodeView): readonly ChainSpec[] {
  const jumpIfNew = (chain: string): PlannedRule => ({ statements: [{ kind: 'ct-new' }, { kind: 'jump', chain }] })
  const jump = (chain: string): PlannedRule => ({ statements: [{ kind: 'jump', chain }] })
  return [
    {
      name: 'reject-chain',
      rules: [{ statements: [{ kind: 'reject' }] }],
      comment: 'helper for @no-endpoint-services / @no-endpoint-nodeports',
    },
    { name: 'masquerading', rules: masquerading(node) },
    { name: 'cluster-ips-check', rules: clusterIpsCheck(node) },
    {
      name: 'service-endpoints-check',
      rules: [{ statements: [{ kind: 'verdict-map', fields: addressKey, set: 'no-endpoint-services' }] }],
    },
    {
      name: 'nodeport-endpoints-check',
      rules: [
        {
          statements: [
            ...toNodePortAddress(node),
            { kind: 'verdict-map', fields: nodePortKey, set: 'no-endpoint-nodeports' },
          ],
        },
      ],
    },
    { name: 'firewall-check', rules: [firewallCheck()] },
    { name: 'services', rules: services(node) },
    hooked('filter-prerouting-pre-dnat', 'prerouting', -110, [jumpIfNew('firewall-check')]),
    hooked('filter-output-pre-dnat', 'output', -110, [jumpIfNew('firewall-check')]),
    hooked('filter-input', 'input', 0, [jumpIfNew('nodeport-endpoints-check'), jumpIfNew('service-endpoints-check')]),
    hooked('filter-forward', 'forward', 0, [jumpIfNew('service-endpoints-check'), jumpIfNew('cluster-ips-check')]),
    hooked('filter-output', 'output', 0, [jumpIfNew('service-endpoints-check'), jumpIfNew('cluster-ips-check')]),
    hooked('nat-prerouting', 'prerouting', -100, [jump('services')]),
    hooked('nat-output', 'output', -100, [jump('services')]),
    hooked('nat-postrouting', 'postrouting', 100, [jump('masquerading')]),
  ]
}

function hooked(name: string, hook: ChainHook, priority: number, rules: readonly PlannedRule[]): ChainSpec {
  return { name, hook: { type: name.startsWith('nat-') ? 'nat' : 'filter', hook, priority }, rules }
}

/** Clears the mark, so that a packet which passes twice is not masqueraded twice. */
function masquerading(node: NodeView): readonly PlannedRule[] {
  const bits = node.masqueradeMark
  return [
    { statements: [{ kind: 'match-mark', bits }, { kind: 'mark-clear', bits }, { kind: 'masquerade' }] },
    {
      statements: [
        { kind: 'ct-dnat' },
        { kind: 'in-set', fields: ['saddr', 'daddr', 'l4proto', 'dport'], set: 'hairpin-connections' },
        { kind: 'masquerade' },
      ],
    },
  ]
}

/**
 * A ServiceCIDR may cover the network of the nodes, and a cluster IP may be the address of an API server. The check must not cut this node
 * off from the API server, since it would never hear of the correction, nor from its own addresses.
 */
function clusterIpsCheck(node: NodeView): readonly PlannedRule[] {
  const notApiServer: Statement = { kind: 'in-set', fields: addressKey, set: 'api-servers', not: true }
  const rejectUnused: PlannedRule = {
    statements: [{ kind: 'in-set', fields: ['daddr'], set: 'cluster-ips' }, notApiServer, { kind: 'reject' }],
    comment: 'Reject traffic to invalid ports of ClusterIPs',
  }
  const dropUnallocated = node.serviceCidrs.map(
    (cidr): PlannedRule => ({
      statements: [
        { kind: 'match-address', field: 'daddr', cidr },
        notApiServer,
        { kind: 'address-type-local', field: 'daddr', not: true },
        { kind: 'drop' },
      ],
      comment: 'Drop traffic to unallocated ClusterIPs',
    }),
  )
  return [rejectUnused, ...dropUnallocated]
}

function firewallCheck(): PlannedRule {
  return {
    statements: [
      { kind: 'in-set', fields: addressKey, set: 'firewalled-ips' },
      { kind: 'in-set', fields: [...addressKey, 'saddr'], set: 'firewall-allowed', not: true },
      { kind: 'drop' },
    ],
    comment: 'loadBalancerSourceRanges',
  }
}

function services(node: NodeView): readonly PlannedRule[] {
  const rules: PlannedRule[] = []
  const toClusterIp: Statement = { kind: 'in-set', fields: ['daddr'], set: 'cluster-ips' }
  const mark: Statement = { kind: 'mark-or', bits: node.masqueradeMark }
  const outside = matchLocalPods(node, false)
  if (node.masqueradeAll) {
    rules.push({ statements: [toClusterIp, mark], comment: 'masquerade all clusterIP traffic' })
  } else if (outside !== undefined) {
    rules.push({
      statements: [toClusterIp, outside, mark],
      comment: 'masquerade clusterIP traffic from outside cluster',
    })
  }
  rules.push({ statements: [{ kind: 'verdict-map', fields: addressKey, set: 'service-ips' }] })
  rules.push({
    statements: [...toNodePortAddress(node), { kind: 'verdict-map', fields: nodePortKey, set: 'service-nodeports' }],
  })
  return rules
}

/** Never matches loopback, because answers to translated packets would be martians. listeners.ts serves loopback where it is configured. */
function toNodePortAddress(node: NodeView): readonly Statement[] {
  if (!node.nodePorts.all) return [{ kind: 'in-set', fields: ['daddr'], set: 'nodeport-ips' }]
  const notLoopback: Statement = {
    kind: 'match-address',
    field: 'daddr',
    cidr: node.family === 4 ? '127.0.0.0/8' : '::1/128',
    not: true,
  }
  return [{ kind: 'address-type-local', field: 'daddr' }, notLoopback]
}
