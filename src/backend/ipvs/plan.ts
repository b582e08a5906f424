// One service port as virtual servers, set members and addresses. Pure.

import { isLinkLocal6, isLoopback } from '../../lib/ip.ts'
import { reachableOf } from '../../model/endpoints.ts'
import type { Endpoint, Frontend, NodeView, ServicePort } from '../../model/types.ts'
import { flag, type Service } from '../../sys/netlink/ipvs.ts'
import {
  addressEntry,
  exactId,
  type IpvsEntry,
  memberEntry,
  nodePortId,
  type ServerEntry,
  serverDigest,
  serverKey,
} from './entries.ts'
import { type SetName, setName } from './set-definitions.ts'

export interface IpvsPlanOptions {
  /** Of services that name none. */
  readonly scheduler: string
}

export function plan(port: ServicePort, node: NodeView, options: IpvsPlanOptions): readonly IpvsEntry[] {
  const draft = new Draft(port, node, options.scheduler)
  for (const frontend of port.frontends) {
    if (frontend.kind === 'cluster-ip') draft.clusterIp(frontend)
    else if (frontend.kind === 'external-ip') draft.externalIp(frontend)
    else if (frontend.kind === 'load-balancer') draft.loadBalancer(frontend)
    else draft.nodePort(frontend)
  }
  if (port.health !== undefined) draft.member('KUBE-HEALTH-CHECK-NODE-PORT', String(port.health.port))
  for (const { ip, port: number, local } of reachableOf(port)) {
    if (local) draft.member('KUBE-LOOP-BACK', `${ip},${port.protocol}:${number},${ip}`)
  }
  return draft.entries
}

class Draft {
  readonly entries: IpvsEntry[] = []
  readonly #port: ServicePort
  readonly #node: NodeView
  readonly #scheduler: string
  /** The policy is Local, with or without endpoints here. */
  readonly #localPolicy: boolean

  constructor(port: ServicePort, node: NodeView, scheduler: string) {
    this.#port = port
    this.#node = node
    this.#scheduler = port.scheduler ?? scheduler
    this.#localPolicy = port.external === 'local' || port.external === 'drop'
  }

  clusterIp(frontend: Frontend): void {
    const { internal, cluster, local } = this.#port
    this.#server(frontend.ip, frontend.port, internal === 'cluster' ? cluster : internal === 'local' ? local : [])
    this.member('KUBE-CLUSTER-IP', this.#at(frontend))
    if (internal === 'drop') this.member('SLUICE-DROP-INTERNAL', this.#at(frontend))
    this.entries.push(addressEntry(frontend.ip))
  }

  externalIp(frontend: Frontend): void {
    this.member(this.#localPolicy ? 'KUBE-EXTERNAL-IP-LOCAL' : 'KUBE-EXTERNAL-IP', this.#at(frontend))
    this.#external(frontend)
  }

  loadBalancer(frontend: Frontend): void {
    const at = this.#at(frontend)
    this.member('KUBE-LOAD-BALANCER', at)
    if (this.#localPolicy) this.member('KUBE-LOAD-BALANCER-LOCAL', at)
    if (frontend.allow.length > 0) this.member('KUBE-LOAD-BALANCER-FW', at)
    for (const range of frontend.allow) this.member('KUBE-LOAD-BALANCER-SOURCE-CIDR', `${at},${range}`)
    if (frontend.allow.length > 0 && this.#port.nodeAllowed) {
      this.member('KUBE-LOAD-BALANCER-SOURCE-IP', `${at},${frontend.ip}`)
    }
    this.#external(frontend)
  }

  nodePort(frontend: Frontend): void {
    const { protocol, external } = this.#port
    const ips = this.#node.nodePorts.addresses.filter((ip) => !isLoopback(ip) && !isLinkLocal6(ip))
    if (ips.length === 0) return
    if (protocol === 'tcp' || protocol === 'udp') {
      const name = protocol === 'tcp' ? 'TCP' : 'UDP'
      this.member(`KUBE-NODE-PORT-${name}`, String(frontend.port))
      if (this.#localPolicy) this.member(`KUBE-NODE-PORT-LOCAL-${name}`, String(frontend.port))
    }
    for (const ip of ips) {
      const at = this.#at({ ip, port: frontend.port })
      this.#server(ip, frontend.port, this.#externalEndpoints(), true)
      if (protocol === 'sctp') this.member('KUBE-NODE-PORT-SCTP-HASH', at)
      if (protocol === 'sctp' && this.#localPolicy) this.member('KUBE-NODE-PORT-LOCAL-SCTP-HASH', at)
      if (external === 'drop') this.member('SLUICE-DROP-EXTERNAL', at)
    }
  }

  member(set: SetName, member: string): void {
    this.entries.push(memberEntry(setName(set, this.#port.family), member))
  }

  #external(frontend: Frontend): void {
    this.#server(frontend.ip, frontend.port, this.#externalEndpoints())
    if (this.#port.external === 'drop') this.member('SLUICE-DROP-EXTERNAL', this.#at(frontend))
    this.entries.push(addressEntry(frontend.ip))
  }

  /** Without an endpoint here, the node itself and its pods still reach those elsewhere; the rules drop everybody else. */
  #externalEndpoints(): readonly Endpoint[] {
    const { external, cluster, local } = this.#port
    return external === 'reject' ? [] : external === 'local' ? local : cluster
  }

  /** Without destinations the kernel refuses: it answers that the port is unreachable. */
  #server(ip: string, number: number, endpoints: readonly Endpoint[], nodePort = false): void {
    const { family, protocol, affinitySeconds, name } = this.#port
    const scheduler = weighted(this.#scheduler, endpoints)
    const persistent = affinitySeconds > 0 ? flag.persistent : 0
    const server: Service = {
      family,
      protocol,
      ip,
      port: number,
      scheduler,
      flags: persistent | (scheduler === 'mh' ? flag.schedulerPort : 0),
      timeout: affinitySeconds,
    }
    const destinations = endpoints.map((one) => ({ ip: one.ip, port: one.port, weight: one.weight ?? 1 }))
    const key = serverKey(server)
    const entry: ServerEntry = {
      id: nodePort ? nodePortId(key) : exactId(key),
      kind: 'server',
      digest: serverDigest(server, destinations),
      server,
      destinations,
      port: name,
    }
    this.entries.push(entry)
  }

  #at({ ip, port }: { readonly ip: string; readonly port: number }): string {
    return `${ip},${this.#port.protocol}:${port}`
  }
}

/** Round robin and least connections know no weights; their twins do. */
function weighted(scheduler: string, endpoints: readonly Endpoint[]): string {
  if (scheduler !== 'rr' && scheduler !== 'lc') return scheduler
  return endpoints.some(({ weight = 1 }) => weight !== 1) ? `w${scheduler}` : scheduler
}
