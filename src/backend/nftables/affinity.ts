// Plans ClientIP affinity, the only feature with chains and sets per service. They have the names and the form of kube-proxy's. Pure.

import type { Endpoint, NodeView, ServicePort } from '../../model/types.ts'
import { countSlots } from '../../model/weights.ts'
import { nftEndpointBase, nftServiceBase } from '../names.ts'
import { chainEntry, type NftEntry, type PlannedRule, type Statement, setEntry } from './entries.ts'
import { matchLocalPods } from './rules.ts'

/** Returns the name of the chain that traffic of this kind enters. */
export function affinityChainName(port: ServicePort, kind: 'cluster' | 'local' | 'external'): string {
  return `${kind === 'cluster' ? 'service' : kind}-${nftServiceBase(port)}`
}

/** Names are hashes, so that each endpoint is named when its entries are wanted: the caller may pause after any entry. */
export function* planAffinity(port: ServicePort, node: NodeView, counting: boolean): Iterable<NftEntry> {
  const cluster = new Map<Endpoint, string>()
  const local = new Map<Endpoint, string>()
  const planned = new Set<string>()
  for (const [list, own] of [[port.cluster, cluster] as const, [port.local, local] as const]) {
    for (const endpoint of list) {
      const base = nftEndpointBase(port, endpoint)
      own.set(endpoint, base)
      if (planned.has(base)) continue
      planned.add(base)
      yield* endpointEntries(port, base, endpoint, counting)
    }
  }
  if (cluster.size > 0) yield* balanceEntries(port, 'cluster', cluster)
  if (local.size > 0) yield* balanceEntries(port, 'local', local)
  const external = port.frontends.some((frontend) => frontend.kind !== 'cluster-ip') && port.external !== 'reject'
  if (external) yield externalEntry(port, node)
}

/** Adds the client to the set of this endpoint, then sends it there. */
function endpointEntries(port: ServicePort, base: string, endpoint: Endpoint, counting: boolean): readonly NftEntry[] {
  const set = `affinity-${base}`
  const translate: Statement = { kind: 'dnat', protocol: port.protocol, ip: endpoint.ip, port: endpoint.port }
  return [
    setEntry({ name: set, shape: 'affinity', comment: '', timeoutSeconds: port.affinitySeconds }),
    chainEntry({
      name: `endpoint-${base}`,
      rules: [
        { statements: [{ kind: 'remember', set, timeoutSeconds: port.affinitySeconds }] },
        // The comment says whose connections the rule counts.
        counting ? { statements: [{ kind: 'count' }, translate], comment: port.name } : { statements: [translate] },
      ],
    }),
  ]
}

/**
 * Sends clients back to the endpoint whose set contains them, and spreads the others at random. The kernel takes 0.1 ms for each of these
 * rules and holds every other change meanwhile, so the rules of many endpoints are spread over several chains: a change writes one of them.
 */
function* balanceEntries(
  port: ServicePort,
  kind: 'cluster' | 'local',
  endpoints: ReadonlyMap<Endpoint, string>,
): Iterable<NftEntry> {
  const bases = [...endpoints.values()]
  const name = affinityChainName(port, kind)
  const remembered: PlannedRule[] = []
  if (bases.length <= maxRulesOfChain) remembered.push(...bases.map(returnClients))
  else {
    for (const [prefix, own] of groupByHash(bases)) {
      const part = partChainName(port, kind, prefix)
      yield chainEntry({ name: part, rules: own.map(returnClients), comment: port.name })
      remembered.push({ statements: [{ kind: 'jump', chain: part }] })
    }
  }
  const turn = port.algorithm === 'round-robin' ? ({ turn: true } as const) : {}
  const spread: PlannedRule = {
    statements: [{ kind: 'random-verdict', targets: listTargets(port, endpoints), ...turn }],
  }
  // A packet that entered before a commit may look up the old map after it and find nothing. The client sends a dropped packet again.
  const drop: PlannedRule = { statements: [{ kind: 'drop' }] }
  yield chainEntry({ name, rules: [...remembered, spread, drop], comment: port.name })
}

/** The chain of each endpoint, as often as its weight wants. */
function listTargets(port: ServicePort, endpoints: ReadonlyMap<Endpoint, string>): readonly string[] {
  const counts = countSlots([...endpoints.keys()], port)
  return [...endpoints.values()].flatMap((base, i) => new Array<string>(counts?.[i] ?? 1).fill(`endpoint-${base}`))
}

/** A service with more endpoints does not keep the form of kube-proxy, which has all rules in one chain. */
const maxRulesOfChain = 100

const returnClients = (base: string): PlannedRule => ({
  statements: [
    { kind: 'in-set', fields: ['saddr'], set: `affinity-${base}` },
    { kind: 'goto', chain: `endpoint-${base}` },
  ],
})

/** The name of a chain that holds the rules of those endpoints whose hash has this prefix. */
const partChainName = (port: ServicePort, kind: 'cluster' | 'local', prefix: string): string =>
  `${kind === 'cluster' ? 'service' : kind}-${prefix}-${nftServiceBase(port)}`

/** Groups endpoints by the first characters of their hashes, so that an endpoint stays in its group when others come and go. */
function groupByHash(bases: readonly string[]): ReadonlyMap<string, readonly string[]> {
  // A character has 32 values, so a group holds some 3 to 100 endpoints; with two characters it holds at least as many.
  const length = bases.length <= maxRulesOfChain * 32 ? 1 : 2
  const groups = new Map<string, string[]>()
  for (const base of [...bases].sort()) {
    const prefix = base.slice(0, length)
    const group = groups.get(prefix)
    if (group === undefined) groups.set(prefix, [base])
    else group.push(base)
  }
  return groups
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
