// One service port as iptables rules: how it is captured in the shared chains, and the chains that choose an endpoint. Pure.

import { hostPort } from '../../lib/ip.ts'
import { reachableOf } from '../../model/endpoints.ts'
import type { Endpoint, Frontend, NodeView, ServicePort } from '../../model/types.ts'
import { hash32, iptablesHash } from '../names.ts'
import { counters } from './chains.ts'
import { chainEntry, countEntry, endpointEntry, type IptEntry, rulesEntry } from './entries.ts'

export interface PlanOptions {
  /** Node ports are served on 127.0.0.1. */
  readonly localhost: boolean
}

export function plan(port: ServicePort, node: NodeView, options: PlanOptions): readonly IptEntry[] {
  if (port.frontends.length === 0) return []
  const run = begin(port, node)
  const { filter, nat } = capture(run, options)
  const entries: IptEntry[] = []
  if (filter.length > 0) entries.push(rulesEntry('filter', port, filter))
  if (nat.length > 0) entries.push(rulesEntry('nat', port, nat))
  if (run.exposed && run.usable) entries.push(chainEntry(run.ext, port, externalRules(run)))
  if (run.firewalled) entries.push(chainEntry(run.fw, port, firewallRules(run)))
  const reachable = port.local.length === 0 ? port.cluster : reachableOf(port)
  const seps = reachable.map((endpoint) => separate(run, endpoint))
  const sepOf = port.local.length === 0 ? undefined : new Map(reachable.map((one, i) => [one, seps[i] as Separate]))
  for (const which of ['cluster', 'local'] as const) {
    if (port[which].length === 0) continue
    const own = port[which] === reachable ? seps : port[which].flatMap((one) => sepOf?.get(one) ?? [])
    const lines = [...internalRule(run, which), ...balance(run, which, own)]
    entries.push(chainEntry(which === 'cluster' ? run.svc : run.svl, port, lines))
  }
  for (const { chain, address } of seps) {
    entries.push(endpointEntry(chain, port, address, port.affinitySeconds > 0))
  }
  if (port.endpoints > seps.length) entries.push(countEntry(port, port.endpoints - seps.length))
  return entries
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
}

function capture(run: Run, { localhost }: PlanOptions): Captured {
  const { port, node, match, ext, fw, usable, firewalled, balancers } = run
  const captured: Captured = { filter: [], nat: [] }
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
    if (usable && localhost && node.family === 4)
      nat.push(`${rule} -d 127.0.0.0/8 --dport ${number} -m nfacct --nfacct-name ${counters.localhost} -j ${ext}`)
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
function internalRule({ port, node, clusterIp, match, svc, svl }: Run, which: 'cluster' | 'local'): readonly string[] {
  if (clusterIp === undefined || port.internal !== which) return []
  const from = node.masqueradeAll ? '' : fromLocalPods(node, false)
  if (from === undefined) return []
  const where = `${match} -d ${clusterIp.ip} --dport ${clusterIp.port}${from}`
  const chain = which === 'cluster' ? svc : svl
  return [`-A ${chain} -m comment --comment "${port.name} cluster IP" ${where} -j KUBE-MARK-MASQ`]
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
  readonly address: string
}

function separate({ port }: Run, { ip, port: number }: Endpoint): Separate {
  const address = hostPort(ip, number)
  return { address, chain: `KUBE-SEP-${hash32(`${port.name}${port.protocol}${address}`, 16)}` }
}

/** The first endpoint with probability 1/n, the next with 1/(n-1) of what is left, and the last with all of it. */
function balance({ port, svc, svl }: Run, which: 'cluster' | 'local', known: readonly Separate[]): readonly string[] {
  const chain = which === 'cluster' ? svc : svl
  const rule = ({ address }: Separate) => `-A ${chain} -m comment --comment "${port.name} -> ${address}"`
  const sticky =
    port.affinitySeconds === 0
      ? []
      : known.map(
          (sep) =>
            `${rule(sep)} -m recent --name ${sep.chain} --rcheck --seconds ${port.affinitySeconds} --reap -j ${sep.chain}`,
        )
  const random = known.map((sep, i) => {
    const left = known.length - i
    const chance = left === 1 ? '' : ` -m statistic --mode random --probability ${probability(left)}`
    return `${rule(sep)}${chance} -j ${sep.chain}`
  })
  return [...sticky, ...random]
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
