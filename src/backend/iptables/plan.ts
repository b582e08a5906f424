// One service port as iptables rules: how it is captured in the shared chains, and the chains that choose an endpoint. Pure.

import { hostPort } from '../../lib/ip.ts'
import { reachableOf } from '../../model/endpoints.ts'
import type { Endpoint, Frontend, NodeView, ServicePort } from '../../model/types.ts'
import { counters } from '../iptables-kit/chains.ts'
import { iptablesEndpointHash, iptablesHash } from '../names.ts'
import { type IptEntry, portEntry } from './entries.ts'

export interface IptablesPlanOptions {
  /** Node ports are served on 127.0.0.1. */
  readonly localhost: boolean
}

export function plan(port: ServicePort, node: NodeView, options: IptablesPlanOptions): readonly IptEntry[] {
  if (port.frontends.length === 0) return []
  const run = begin(port, node)
  const { filter, nat, counted } = capture(run, options)
  const chains: string[] = []
  const own: string[] = []
  // kube-proxy writes the first rule for the cluster IP before it comes to the other chains of the port.
  const internal = internalRule(run)
  if (internal !== undefined) own.push(internal)
  if (run.exposed && run.usable) {
    chains.push(run.ext)
    own.push(...externalRules(run))
  }
  if (run.firewalled) {
    chains.push(run.fw)
    own.push(...firewallRules(run))
  }
  const reachable = port.local.length === 0 ? port.cluster : reachableOf(port)
  const seps = reachable.map((endpoint) => separate(run, endpoint))
  const sepOf = port.local.length === 0 ? undefined : new Map(reachable.map((one, i) => [one, seps[i] as Separate]))
  for (const which of ['cluster', 'local'] as const) {
    if (port[which].length === 0) continue
    chains.push(which === 'cluster' ? run.svc : run.svl)
    balance(run, which, port[which] === reachable ? seps : port[which].flatMap((one) => sepOf?.get(one) ?? []), own)
  }
  for (const sep of seps) {
    chains.push(sep.chain)
    deliver(run, sep, own)
  }
  if (filter.length + nat.length + chains.length + port.endpoints === 0) return []
  const unreached = Math.max(0, port.endpoints - seps.length)
  const endpoints = seps.length + unreached
  return [portEntry(port, { chains, shared: nat, counted, own, filter, unreached, endpoints })]
}

/** What all rules of a port are made of. */
interface Run {
  readonly port: ServicePort
  readonly node: NodeView
  /** Some endpoint is usable somewhere. */
  readonly usable: boolean
  /** It has addresses beyond the cluster IP. */
  readonly exposed: boolean
  readonly firewalled: boolean
  readonly clusterIp: Frontend | undefined
  readonly balancers: readonly Frontend[]
  readonly svc: string
  readonly svl: string
  readonly ext: string
  readonly fw: string
  /** `-m tcp -p tcp`. */
  readonly match: string
}

function begin(port: ServicePort, node: NodeView): Run {
  const hash = iptablesHash(port)
  const usable = port.internal !== 'reject'
  const balancers = port.frontends.filter(({ kind }) => kind === 'load-balancer')
  return {
    port,
    node,
    usable,
    exposed: port.frontends.some(({ kind }) => kind !== 'cluster-ip'),
    firewalled: usable && balancers.some(({ allow }) => allow.length > 0),
    clusterIp: port.frontends.find(({ kind }) => kind === 'cluster-ip'),
    balancers,
    svc: `KUBE-SVC-${hash}`,
    svl: `KUBE-SVL-${hash}`,
    ext: `KUBE-EXT-${hash}`,
    fw: `KUBE-FW-${hash}`,
    match: `-m ${port.protocol} -p ${port.protocol}`,
  }
}

// ---- Shared chains. ----

interface Captured {
  readonly filter: string[]
  readonly nat: string[]
  /** Rules in nat that count packets for localhost. */
  counted: number
}

function capture(run: Run, { localhost }: IptablesPlanOptions): Captured {
  const { port, node, match, ext, fw, usable, firewalled, balancers } = run
  const captured: Captured = { filter: [], nat: [], counted: 0 }
  const { filter, nat } = captured
  const to = ({ ip, port: number }: Frontend) => `${match} -d ${ip} --dport ${number}`
  const refused = usable ? 'has no local endpoints' : 'has no endpoints'
  const verdict = usable ? 'DROP' : 'REJECT'
  const refuses = port.external === 'reject' || port.external === 'drop'
  const refuseExternal = (where: string) => {
    filter.push(`-A KUBE-EXTERNAL-SERVICES -m comment --comment "${port.name} ${refused}" ${where} -j ${verdict}`)
  }

  captureClusterIp(run, captured)
  if (!run.exposed && port.health === undefined) return captured
  for (const frontend of port.frontends.filter(({ kind }) => kind === 'external-ip')) {
    if (usable) nat.push(`-A KUBE-SERVICES -m comment --comment "${port.name} external IP" ${to(frontend)} -j ${ext}`)
    if (refuses) refuseExternal(to(frontend))
  }
  for (const frontend of balancers) {
    const next = firewalled ? fw : ext
    if (usable)
      nat.push(`-A KUBE-SERVICES -m comment --comment "${port.name} loadbalancer IP" ${to(frontend)} -j ${next}`)
    if (firewalled) {
      const comment = `"${port.name} traffic not accepted by ${fw}"`
      filter.push(`-A KUBE-PROXY-FIREWALL -m comment --comment ${comment} ${to(frontend)} -j DROP`)
    }
  }
  if (refuses) for (const frontend of balancers) refuseExternal(to(frontend))
  for (const { port: number } of port.frontends.filter(({ kind }) => kind === 'node-port')) {
    const rule = `-A KUBE-NODEPORTS -m comment --comment ${port.name} ${match}`
    // Written only where the kernel can count: the target takes it out elsewhere, and the next rule serves loopback as well.
    if (usable && localhost && node.family === 4) {
      captured.counted++
      nat.push(`${rule} -d 127.0.0.0/8 --dport ${number} -m nfacct --nfacct-name ${counters.localhost} -j ${ext}`)
    }
    if (usable) nat.push(`${rule} --dport ${number} -j ${ext}`)
    if (refuses) refuseExternal(`-m addrtype --dst-type LOCAL ${match} --dport ${number}`)
  }
  if (port.health !== undefined) {
    const comment = `"${port.name} health check node port"`
    filter.push(`-A KUBE-NODEPORTS -m comment --comment ${comment} -m tcp -p tcp --dport ${port.health.port} -j ACCEPT`)
  }
  return captured
}

function captureClusterIp({ port, clusterIp, match, svc, svl }: Run, { filter, nat }: Captured): void {
  if (clusterIp === undefined) return
  const where = `${match} -d ${clusterIp.ip} --dport ${clusterIp.port}`
  const rule = (comment: string, target: string) =>
    `-A KUBE-SERVICES -m comment --comment "${port.name} ${comment}" ${where} -j ${target}`
  if (port.internal === 'reject') filter.push(rule('has no endpoints', 'REJECT'))
  else if (port.internal === 'drop') filter.push(rule('has no local endpoints', 'DROP'))
  else nat.push(rule('cluster IP', port.internal === 'local' ? svl : svc))
}

// ---- Own chains. ----

/** In the chain that cluster IP traffic goes to: who does not count as a local pod is masqueraded. */
function internalRule({ port, node, clusterIp, match, svc, svl }: Run): string | undefined {
  const { internal } = port
  if (clusterIp === undefined || (internal !== 'cluster' && internal !== 'local') || port[internal].length === 0)
    return undefined
  const from = node.masqueradeAll ? '' : fromLocalPods(node, false)
  if (from === undefined) return undefined
  const where = `${match} -d ${clusterIp.ip} --dport ${clusterIp.port}${from}`
  const chain = internal === 'cluster' ? svc : svl
  return `-A ${chain} -m comment --comment "${port.name} cluster IP" ${where} -j KUBE-MARK-MASQ`
}

function externalRules({ port, node, ext, svc, svl }: Run): readonly string[] {
  const rule = (comment: string, rest: string) =>
    `-A ${ext} -m comment --comment "${comment} ${port.name} external destinations"${rest}`
  if (port.external === 'cluster') return [rule('masquerade traffic for', ' -j KUBE-MARK-MASQ'), `-A ${ext} -j ${svc}`]
  const pods = fromLocalPods(node, true)
  const local = ' -m addrtype --src-type LOCAL'
  return [
    ...(pods === undefined ? [] : [rule('pod traffic for', `${pods} -j ${svc}`)]),
    rule('masquerade LOCAL traffic for', `${local} -j KUBE-MARK-MASQ`),
    rule('route LOCAL traffic for', `${local} -j ${svc}`),
    ...(port.external === 'local' ? [`-A ${ext} -j ${svl}`] : []),
  ]
}

function firewallRules({ port, balancers, fw, ext }: Run): readonly string[] {
  const allow = balancers.find((frontend) => frontend.allow.length > 0)?.allow ?? []
  const sources = port.nodeAllowed ? [...allow, ...balancers.map(({ ip }) => ip)] : allow
  return [
    ...sources.map((source) => `-A ${fw} -m comment --comment "${port.name} loadbalancer IP" -s ${source} -j ${ext}`),
    `-A ${fw} -m comment --comment "other traffic to ${port.name} will be dropped by KUBE-PROXY-FIREWALL"`,
  ]
}

interface Separate {
  readonly chain: string
  readonly ip: string
  readonly address: string
}

function separate({ port }: Run, { ip, port: number }: Endpoint): Separate {
  const address = hostPort(ip, number)
  return { ip, address, chain: `KUBE-SEP-${iptablesEndpointHash(port, address)}` }
}

/** The first endpoint with probability 1/n, the next with 1/(n-1) of what is left, and the last with all of it. */
function balance({ port, svc, svl }: Run, which: 'cluster' | 'local', known: readonly Separate[], out: string[]): void {
  const rule = `-A ${which === 'cluster' ? svc : svl}`
  const seconds = port.affinitySeconds
  if (seconds > 0) {
    for (const { chain } of known)
      out.push(`${rule} -m recent --name ${chain} --rcheck --seconds ${seconds} --reap -j ${chain}`)
  }
  let left = known.length
  for (const { chain } of known) {
    const chance = left === 1 ? '' : ` -m statistic --mode random --probability ${probability(left)}`
    left--
    out.push(`${rule}${chance} -j ${chain}`)
  }
}

function deliver({ port, match }: Run, { chain, ip, address }: Separate, out: string[]): void {
  const remember = port.affinitySeconds === 0 ? '' : ` -m recent --name ${chain} --set`
  out.push(
    `-A ${chain} -s ${ip} -j KUBE-MARK-MASQ`,
    `-A ${chain}${remember} ${match} -j DNAT --to-destination ${address}`,
  )
}

/** undefined if local traffic cannot be told from other traffic. */
function fromLocalPods({ local }: NodeView, wanted: boolean): string | undefined {
  if (local === undefined) return undefined
  const not = wanted ? '' : '! '
  if (local.kind === 'cidr') return ` ${not}-s ${local.cidr}`
  return ` ${not}-i ${local.kind === 'interface' ? local.name : `${local.prefix}+`}`
}

/** C's "%.10f" of 1/n. Of all n up to 20,000 only 2048 is an exact tie, which C rounds to even and JavaScript up. */
export const probability = (n: number): string => (n === 2048 ? '0.0004882812' : (1 / n).toFixed(10))
