// Plans one service port as iptables rules: rules in the shared chains that capture it, and own chains that choose an endpoint. Pure.

import { hostPort } from '../../lib/ip.ts'
import { reachableOf } from '../../model/endpoints.ts'
import type { Endpoint, Frontend, NodeView, ServicePort } from '../../model/types.ts'
import { areSharesEqual, shareOf } from '../../model/weights.ts'
import { counters } from '../iptables-kit/chains.ts'
import { iptablesEndpointHash, iptablesHash } from '../names.ts'
import { createPortEntry, type PortEntry } from './entries.ts'

export interface IptablesPlanOptions {
  /** Node ports are served on 127.0.0.1. */
  readonly localhost: boolean
}

export function plan(port: ServicePort, node: NodeView, options: IptablesPlanOptions): readonly PortEntry[] {
  if (port.frontends.length === 0) return []
  const context = createContext(port, node)
  const { filter, nat, counted } = capture(context, options)
  const chains: string[] = []
  const own: string[] = []
  // kube-proxy writes the first rule for the cluster IP before the other chains of the port.
  const internal = planInternalRule(context)
  if (internal !== undefined) own.push(internal)
  if (context.isExposed && context.isUsable) {
    chains.push(context.ext)
    own.push(...planExternalRules(context))
  }
  if (context.hasFirewall) {
    chains.push(context.fw)
    own.push(...planFirewallRules(context))
  }
  const endpoints = planEndpoints(context, chains, own)
  if (filter.length + nat.length + chains.length + port.endpoints === 0) return []
  const unreached = Math.max(0, port.endpoints - endpoints)
  return [createPortEntry(port, { chains, shared: nat, counted, own, filter, unreached }, endpoints + unreached)]
}

/** What all rules of a port are made of. */
interface PortContext {
  readonly port: ServicePort
  readonly node: NodeView
  /** Some endpoint is usable somewhere. */
  readonly isUsable: boolean
  /** The port has addresses beyond the cluster IP. */
  readonly isExposed: boolean
  readonly hasFirewall: boolean
  readonly clusterIp: Frontend | undefined
  readonly balancers: readonly Frontend[]
  // Names of the own chains.
  readonly svc: string
  readonly svl: string
  readonly ext: string
  readonly fw: string
  /** `-m tcp -p tcp`. */
  readonly match: string
}

function createContext(port: ServicePort, node: NodeView): PortContext {
  const hash = iptablesHash(port)
  const isUsable = port.internal !== 'reject'
  const balancers = frontendsOf(port, 'load-balancer')
  return {
    port,
    node,
    isUsable,
    isExposed: port.frontends.some(({ kind }) => kind !== 'cluster-ip'),
    hasFirewall: isUsable && balancers.some(({ allow }) => allow.length > 0),
    clusterIp: port.frontends.find(({ kind }) => kind === 'cluster-ip'),
    balancers,
    svc: `KUBE-SVC-${hash}`,
    svl: `KUBE-SVL-${hash}`,
    ext: `KUBE-EXT-${hash}`,
    fw: `KUBE-FW-${hash}`,
    match: `-m ${port.protocol} -p ${port.protocol}`,
  }
}

const frontendsOf = (port: ServicePort, wanted: Frontend['kind']): readonly Frontend[] =>
  port.frontends.filter(({ kind }) => kind === wanted)

// ---- Shared chains. ----

interface CapturedRules {
  readonly filter: string[]
  readonly nat: string[]
  /** Rules in nat that count packets for localhost. */
  counted: number
}

function capture(context: PortContext, { localhost }: IptablesPlanOptions): CapturedRules {
  const { port } = context
  const rules: CapturedRules = { filter: [], nat: [], counted: 0 }
  captureClusterIp(context, rules)
  if (!context.isExposed && port.health === undefined) return rules
  captureExternalIps(context, rules)
  captureBalancers(context, rules)
  captureNodePorts(context, localhost && context.node.family === 4, rules)
  if (port.health !== undefined) {
    const comment = `"${port.name} health check node port"`
    const match = `-m tcp -p tcp --dport ${port.health.port}`
    rules.filter.push(`-A KUBE-NODEPORTS -m comment --comment ${comment} ${match} -j ACCEPT`)
  }
  return rules
}

function captureClusterIp({ port, clusterIp, match, svc, svl }: PortContext, { filter, nat }: CapturedRules): void {
  if (clusterIp === undefined) return
  const where = `${match} -d ${clusterIp.ip} --dport ${clusterIp.port}`
  const rule = (comment: string, target: string) =>
    `-A KUBE-SERVICES -m comment --comment "${port.name} ${comment}" ${where} -j ${target}`
  if (port.internal === 'reject') filter.push(rule('has no endpoints', 'REJECT'))
  else if (port.internal === 'drop') filter.push(rule('has no local endpoints', 'DROP'))
  else nat.push(rule('cluster IP', port.internal === 'local' ? svl : svc))
}

function captureExternalIps(context: PortContext, { filter, nat }: CapturedRules): void {
  const { port, match, ext, isUsable } = context
  for (const frontend of frontendsOf(port, 'external-ip')) {
    const where = matchFrontend(match, frontend)
    if (isUsable) nat.push(`-A KUBE-SERVICES -m comment --comment "${port.name} external IP" ${where} -j ${ext}`)
    filter.push(...refuseExternal(context, where))
  }
}

function captureBalancers(context: PortContext, { filter, nat }: CapturedRules): void {
  const { port, match, ext, fw, isUsable, hasFirewall, balancers } = context
  for (const frontend of balancers) {
    const where = matchFrontend(match, frontend)
    const target = hasFirewall ? fw : ext
    if (isUsable) nat.push(`-A KUBE-SERVICES -m comment --comment "${port.name} loadbalancer IP" ${where} -j ${target}`)
    if (hasFirewall) {
      const comment = `"${port.name} traffic not accepted by ${fw}"`
      filter.push(`-A KUBE-PROXY-FIREWALL -m comment --comment ${comment} ${where} -j DROP`)
    }
  }
  for (const frontend of balancers) filter.push(...refuseExternal(context, matchFrontend(match, frontend)))
}

function captureNodePorts(context: PortContext, localhost: boolean, rules: CapturedRules): void {
  const { port, match, ext, isUsable } = context
  for (const { port: number } of frontendsOf(port, 'node-port')) {
    const rule = `-A KUBE-NODEPORTS -m comment --comment ${port.name} ${match}`
    // Where the kernel cannot count packets, features.ts removes this rule, and the next one serves loopback as well.
    if (isUsable && localhost) {
      rules.counted++
      const counter = `-m nfacct --nfacct-name ${counters.localhost}`
      rules.nat.push(`${rule} -d 127.0.0.0/8 --dport ${number} ${counter} -j ${ext}`)
    }
    if (isUsable) rules.nat.push(`${rule} --dport ${number} -j ${ext}`)
    rules.filter.push(...refuseExternal(context, `-m addrtype --dst-type LOCAL ${match} --dport ${number}`))
  }
}

const matchFrontend = (match: string, { ip, port }: Frontend): string => `${match} -d ${ip} --dport ${port}`

/** The rule that refuses traffic from outside, if it has no endpoint. */
function refuseExternal({ port, isUsable }: PortContext, where: string): readonly string[] {
  if (port.external !== 'reject' && port.external !== 'drop') return []
  const reason = isUsable ? 'has no local endpoints' : 'has no endpoints'
  const verdict = isUsable ? 'DROP' : 'REJECT'
  return [`-A KUBE-EXTERNAL-SERVICES -m comment --comment "${port.name} ${reason}" ${where} -j ${verdict}`]
}

// ---- Own chains. ----

/** The chain that cluster IP traffic goes to masquerades traffic that does not come from a local pod. */
function planInternalRule({ port, node, clusterIp, match, svc, svl }: PortContext): string | undefined {
  const { internal } = port
  if (clusterIp === undefined || (internal !== 'cluster' && internal !== 'local') || port[internal].length === 0)
    return undefined
  const from = node.masqueradeAll ? '' : matchLocalPods(node, false)
  if (from === undefined) return undefined
  const where = `${matchFrontend(match, clusterIp)}${from}`
  const chain = internal === 'cluster' ? svc : svl
  return `-A ${chain} -m comment --comment "${port.name} cluster IP" ${where} -j KUBE-MARK-MASQ`
}

function planExternalRules({ port, node, ext, svc, svl }: PortContext): readonly string[] {
  const rule = (comment: string, rest: string) =>
    `-A ${ext} -m comment --comment "${comment} ${port.name} external destinations"${rest}`
  if (port.external === 'cluster') return [rule('masquerade traffic for', ' -j KUBE-MARK-MASQ'), `-A ${ext} -j ${svc}`]
  const pods = matchLocalPods(node, true)
  const local = ' -m addrtype --src-type LOCAL'
  return [
    ...(pods === undefined ? [] : [rule('pod traffic for', `${pods} -j ${svc}`)]),
    rule('masquerade LOCAL traffic for', `${local} -j KUBE-MARK-MASQ`),
    rule('route LOCAL traffic for', `${local} -j ${svc}`),
    ...(port.external === 'local' ? [`-A ${ext} -j ${svl}`] : []),
  ]
}

function planFirewallRules({ port, balancers, fw, ext }: PortContext): readonly string[] {
  const allow = balancers.find((frontend) => frontend.allow.length > 0)?.allow ?? []
  const sources = port.nodeAllowed ? [...allow, ...balancers.map(({ ip }) => ip)] : allow
  return [
    ...sources.map((source) => `-A ${fw} -m comment --comment "${port.name} loadbalancer IP" -s ${source} -j ${ext}`),
    `-A ${fw} -m comment --comment "other traffic to ${port.name} will be dropped by KUBE-PROXY-FIREWALL"`,
  ]
}

/** Adds the chains that choose an endpoint and those of the endpoints, and returns how many endpoints are reached from here. */
function planEndpoints(context: PortContext, chains: string[], own: string[]): number {
  const { port, svc, svl } = context
  const reachable = port.local.length === 0 ? port.cluster : reachableOf(port)
  const names = reachable.map((endpoint) => `KUBE-SEP-${iptablesEndpointHash(port, addressOf(endpoint))}`)
  const nameOf = port.local.length === 0 ? undefined : new Map(reachable.map((one, i) => [one, names[i] as string]))
  for (const which of ['cluster', 'local'] as const) {
    if (port[which].length === 0) continue
    const chain = which === 'cluster' ? svc : svl
    chains.push(chain)
    const targets = port[which] === reachable ? names : port[which].flatMap((one) => nameOf?.get(one) ?? [])
    remember(chain, targets, port.affinitySeconds, own)
    balance(chain, targets, chancesOf(port, port[which]), own)
  }
  for (const [i, endpoint] of reachable.entries()) {
    const chain = names[i] as string
    chains.push(chain)
    deliver(context, endpoint, chain, own)
  }
  return reachable.length
}

function remember(chain: string, targets: readonly string[], affinitySeconds: number, out: string[]): void {
  if (affinitySeconds === 0) return
  for (const target of targets) {
    out.push(`-A ${chain} -m recent --name ${target} --rcheck --seconds ${affinitySeconds} --reap -j ${target}`)
  }
}

function balance(chain: string, targets: readonly string[], chances: Iterable<string>, out: string[]): void {
  const chance = chances[Symbol.iterator]()
  for (const [i, target] of targets.entries()) {
    const match = i === targets.length - 1 ? '' : ` -m statistic --mode ${chance.next().value}`
    out.push(`-A ${chain}${match} -j ${target}`)
  }
}

/**
 * The first endpoint with probability 1/n, the next with 1/(n-1) of what is left, and the last with all of it. With weights, each with its
 * part of the weights that are left. By turns, every n-th connection and so on; turns know no weights. There is no hash of the client.
 */
function* chancesOf(port: ServicePort, endpoints: readonly Endpoint[]): Iterable<string> {
  if (areSharesEqual(endpoints, port)) {
    for (let left = endpoints.length; left > 0; left--) {
      if (port.algorithm === 'round-robin') yield `nth --every ${left} --packet 0`
      else yield `random --probability ${formatProbability(left)}`
    }
    return
  }
  const shares = endpoints.map((endpoint) => shareOf(endpoint, port))
  let left = shares.reduce((sum, share) => sum + share, 0)
  for (const share of shares) {
    yield `random --probability ${(share / left).toFixed(10)}`
    left -= share
  }
}

function deliver({ port, match }: PortContext, endpoint: Endpoint, chain: string, out: string[]): void {
  const remember = port.affinitySeconds === 0 ? '' : ` -m recent --name ${chain} --set`
  out.push(
    `-A ${chain} -s ${endpoint.ip} -j KUBE-MARK-MASQ`,
    `-A ${chain}${remember} ${match} -j DNAT --to-destination ${addressOf(endpoint)}`,
  )
}

const addressOf = ({ ip, port }: Endpoint): string => hostPort(ip, port)

/** The match for traffic from local pods, or for all other traffic; undefined if local traffic cannot be recognised. */
function matchLocalPods({ local }: NodeView, isWanted: boolean): string | undefined {
  if (local === undefined) return undefined
  const not = isWanted ? '' : '! '
  if (local.kind === 'cidr') return ` ${not}-s ${local.cidr}`
  return ` ${not}-i ${local.kind === 'interface' ? local.name : `${local.prefix}+`}`
}

/** C's "%.10f" of 1/n. Of all n up to 20,000 only 2048 is an exact tie, which C rounds to even and JavaScript rounds up. */
export const formatProbability = (n: number): string => (n === 2048 ? '0.0004882812' : (1 / n).toFixed(10))
