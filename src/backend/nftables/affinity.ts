// Plans ClientIP affinity, the only feature with chains and sets per service. They have the names and the form of kube-proxy's. Pure.

import type { Endpoint, NodeView, ServicePort } from '../../model/types.ts'
import { nftEndpointBase, nftServiceBase } from '../names.ts'
import { chainEntry, type NftEntry, type PlannedRule, setEntry } from './entries.ts'
import { matchLocalPods } from './rules.ts'

/** Returns the name of the chain that traffic of this kind enters. */
export function affinityChainName(port: ServicePort, kind: 'cluster' | 'local' | 'external'): string {
  return `${kind === 'cluster' ? 'service' : kind}-${nftServiceBase(port)}`
}

export function* planAffinity(port: ServicePort, node: NodeView): Iterable<NftEntry> {
  const cluster = new Map(port.cluster.map((endpoint) => [endpoint, nftEndpointBase(port, endpoint)] as const))
  const local = new Map(port.local.map((endpoint) => [endpoint, nftEndpointBase(port, endpoint)] as const))
  const endpoints = new Map<string, Endpoint>()
  for (const own of [cluster, local]) for (const [endpoint, base] of own) endpoints.set(base, endpoint)
  for (const [base, endpoint] of endpoints) yield* endpointEntries(port, base, endpoint)
  if (cluster.size > 0) yield balanceEntry(port, affinityChainName(port, 'cluster'), [...cluster.values()])
  if (local.size > 0) yield balanceEntry(port, affinityChainName(port, 'local'), [...local.values()])
  const external = port.frontends.some((frontend) => frontend.kind !== 'cluster-ip') && port.external !== 'reject'
  if (external) yield externalEntry(port, node)
}

/** Adds the client to the set of this endpoint, then sends it there. */
function endpointEntries(port: ServicePort, base: string, endpoint: Endpoint): readonly NftEntry[] {
  const set = `affinity-${base}`
  return [
    setEntry({ name: set, shape: 'affinity', comment: '', timeoutSeconds: port.affinitySeconds }),
    chainEntry({
      name: `endpoint-${base}`,
      rules: [
        { statements: [{ kind: 'remember', set, timeoutSeconds: port.affinitySeconds }] },
        { statements: [{ kind: 'dnat', protocol: port.protocol, ip: endpoint.ip, port: endpoint.port }] },
      ],
    }),
  ]
}

/** Sends clients back to the endpoint whose set contains them, and spreads the others at random. */
function balanceEntry(port: ServicePort, name: string, bases: readonly string[]): NftEntry {
  const remembered = bases.map(
    (base): PlannedRule => ({
      statements: [
        { kind: 'in-set', fields: ['saddr'], set: `affinity-${base}` },
        { kind: 'goto', chain: `endpoint-${base}` },
      ],
    }),
  )
  const spread: PlannedRule = {
    statements: [{ kind: 'random-verdict', targets: bases.map((base) => `endpoint-${base}`) }],
  }
  // A packet that entered before a commit may look up the old map after it and find nothing. The client sends a dropped packet again.
  const drop: PlannedRule = { statements: [{ kind: 'drop' }] }
  return chainEntry({ name, rules: [...remembered, spread, drop], comment: port.name })
}

function externalEntry(port: ServicePort, node: NodeView): NftEntry {
  const cluster = affinityChainName(port, 'cluster')
  const mark: PlannedRule['statements'][number] = { kind: 'mark-or', bits: node.masqueradeMark }
  const rules: PlannedRule[] = []
  if (port.external === 'cluster') {
    rules.push({ statements: [mark, { kind: 'goto', chain: cluster }], comment: 'masquerade' })
  } else {
    const local: PlannedRule['statements'][number] = { kind: 'address-type-local', field: 'saddr' }
    const pods = matchLocalPods(node, true)
    if (pods !== undefined) {
      rules.push({ statements: [pods, { kind: 'goto', chain: cluster }], comment: 'short-circuit pod traffic' })
    }
    rules.push({ statements: [local, mark], comment: 'masquerade local traffic' })
    rules.push({ statements: [local, { kind: 'goto', chain: cluster }], comment: 'short-circuit local traffic' })
    if (port.external === 'local') {
      rules.push({ statements: [{ kind: 'goto', chain: affinityChainName(port, 'local') }] })
    } else {
      rules.push({ statements: [{ kind: 'drop' }], comment: 'no local endpoints' })
    }
  }
  return chainEntry({ name: affinityChainName(port, 'external'), rules, comment: port.name })
}
