// Plans one service port as virtual servers, set members and addresses. Pure.

import { isLinkLocal6, isLoopback } from '../../lib/ip.ts'
import { reachableOf } from '../../model/endpoints.ts'
import { leadsToApiServers } from '../../model/reserved-addresses.ts'
import type { Algorithm, Endpoint, Frontend, NodeView, ServicePort } from '../../model/types.ts'
import { shareOf } from '../../model/weights.ts'
import { ipvsFlag, type VirtualServer } from '../../sys/netlink/ipvs.ts'
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
import { type IpsetName, setName } from './set-definitions.ts'

export interface IpvsPlanOptions {
  /** The scheduler of services that name none. */
  readonly scheduler: string
}

export function plan(port: ServicePort, node: NodeView, options: IpvsPlanOptions): readonly IpvsEntry[] {
  const planned = new PortPlan(port, node, options.scheduler)
  for (const frontend of port.frontends) {
    if (frontend.kind === 'cluster-ip') planned.addClusterIp(frontend)
    else if (frontend.kind === 'external-ip') planned.addExternalIp(frontend)
    else if (frontend.kind === 'load-balancer') planned.addLoadBalancer(frontend)
    else planned.addNodePort(frontend)
  }
  if (port.health !== undefined) planned.addMember('KUBE-HEALTH-CHECK-NODE-PORT', String(port.health.port))
  for (const { ip, port: number, local } of reachableOf(port)) {
    if (local) planned.addMember('KUBE-LOOP-BACK', `${ip},${port.protocol}:${number},${ip}`)
  }
  return planned.entries
}

class PortPlan {
  readonly entries: IpvsEntry[] = []
  readonly #port: ServicePort
  readonly #node: NodeView
  readonly #scheduler: string
  /** externalTrafficPolicy is Local, with or without endpoints on this node. */
  readonly #isExternalLocal: boolean

  constructor(port: ServicePort, node: NodeView, scheduler: string) {
    this.#port = port
    this.#node = node
    this.#scheduler = port.scheduler ?? schedulerOf(port.algorithm) ?? scheduler
    this.#isExternalLocal = port.external === 'local' || port.external === 'drop'
  }

  addClusterIp(frontend: Frontend): void {
    this.#addServer(frontend.ip, frontend.port, this.#internalEndpoints())
    this.addMember('KUBE-CLUSTER-IP', this.#memberText(frontend))
    if (this.#port.internal === 'drop') this.addMember('SLUICE-DROP-INTERNAL', this.#memberText(frontend))
    this.#bindAddress(frontend.ip)
  }

  addExternalIp(frontend: Frontend): void {
    this.addMember(this.#isExternalLocal ? 'KUBE-EXTERNAL-IP-LOCAL' : 'KUBE-EXTERNAL-IP', this.#memberText(frontend))
    this.#addExternal(frontend)
  }

  addLoadBalancer(frontend: Frontend): void {
    const member = this.#memberText(frontend)
    this.addMember('KUBE-LOAD-BALANCER', member)
    if (this.#isExternalLocal) this.addMember('KUBE-LOAD-BALANCER-LOCAL', member)
    if (frontend.allow.length > 0) this.addMember('KUBE-LOAD-BALANCER-FW', member)
    for (const range of frontend.allow) this.addMember('KUBE-LOAD-BALANCER-SOURCE-CIDR', `${member},${range}`)
    if (frontend.allow.length > 0 && this.#port.nodeAllowed) {
      this.addMember('KUBE-LOAD-BALANCER-SOURCE-IP', `${member},${frontend.ip}`)
    }
    this.#addExternal(frontend)
  }

  addNodePort(frontend: Frontend): void {
    const { protocol, external } = this.#port
    const ips = this.#node.nodePorts.addresses.filter((ip) => !isLoopback(ip) && !isLinkLocal6(ip))
    if (ips.length === 0) return
    if (protocol === 'tcp' || protocol === 'udp') {
      const name = protocol === 'tcp' ? 'TCP' : 'UDP'
      this.addMember(`KUBE-NODE-PORT-${name}`, String(frontend.port))
      if (this.#isExternalLocal) this.addMember(`KUBE-NODE-PORT-LOCAL-${name}`, String(frontend.port))
    }
    for (const ip of ips) {
      const member = this.#memberText({ ip, port: frontend.port })
      this.#addServer(ip, frontend.port, this.#externalEndpoints(), true)
      if (protocol === 'sctp') this.addMember('KUBE-NODE-PORT-SCTP-HASH', member)
      if (protocol === 'sctp' && this.#isExternalLocal) this.addMember('KUBE-NODE-PORT-LOCAL-SCTP-HASH', member)
      if (external === 'drop') this.addMember('SLUICE-DROP-EXTERNAL', member)
    }
  }

  addMember(set: IpsetName, member: string): void {
    this.entries.push(memberEntry(setName(set, this.#port.family), member))
  }

  #addExternal(frontend: Frontend): void {
    this.#addServer(frontend.ip, frontend.port, this.#externalEndpoints())
    if (this.#port.external === 'drop') this.addMember('SLUICE-DROP-EXTERNAL', this.#memberText(frontend))
    this.#bindAddress(frontend.ip)
  }

  /** An address on the device is an address of this node for every port, so the API server's address must never be there. */
  #bindAddress(ip: string): void {
    const isApiServer = this.#node.apiServers.some((server) => server.ip === ip)
    if (isApiServer && !leadsToApiServers(this.#port, this.#node)) return
    this.entries.push(addressEntry(ip))
  }

  #internalEndpoints(): readonly Endpoint[] {
    const { internal, cluster, local } = this.#port
    if (internal === 'cluster') return cluster
    return internal === 'local' ? local : []
  }

  /** Without an endpoint on this node, the node and its pods still reach endpoints on other nodes; the rules drop all other clients. */
  #externalEndpoints(): readonly Endpoint[] {
    const { external, cluster, local } = this.#port
    if (external === 'reject') return []
    return external === 'local' ? local : cluster
  }

  /** Without destinations the kernel refuses clients: it answers that the port is unreachable. */
  #addServer(ip: string, number: number, endpoints: readonly Endpoint[], isNodePort = false): void {
    const { family, protocol, affinitySeconds, name } = this.#port
    const scheduler = chooseWeighted(this.#scheduler, endpoints, this.#port)
    const persistent = affinitySeconds > 0 ? ipvsFlag.persistent : 0
    const server: VirtualServer = {
      family,
      protocol,
      ip,
      port: number,
      scheduler,
      flags: persistent | (this.#port.scheduler === undefined && hashesClients(this.#port) ? 0 : portFlag(scheduler)),
      timeout: affinitySeconds,
    }
    const destinations = endpoints.map((one) => ({ ip: one.ip, port: one.port, weight: shareOf(one, this.#port) }))
    const key = serverKey(server)
    const entry: ServerEntry = {
      id: isNodePort ? nodePortId(key) : exactId(key),
      kind: 'server',
      digest: serverDigest(server, destinations),
      server,
      destinations,
      port: name,
    }
    this.entries.push(entry)
  }

  #memberText({ ip, port }: { readonly ip: string; readonly port: number }): string {
    return `${ip},${this.#port.protocol}:${port}`
  }
}

/** Maglev hashing chooses by the client's address; with this flag by its port as well, which is what `mh` alone means upstream. */
const portFlag = (scheduler: string): number => (scheduler === 'mh' ? ipvsFlag.schedulerPort : 0)

const hashesClients = ({ algorithm }: ServicePort): boolean => algorithm === 'consistent-hash'

/** IPVS has no choice at random: its own scheduler stays. */
function schedulerOf(algorithm: Algorithm | undefined): string | undefined {
  if (algorithm === 'round-robin') return 'rr'
  return algorithm === 'consistent-hash' ? 'mh' : undefined
}

/** Round robin and least connections ignore weights; wrr and wlc are the same schedulers with weights. */
function chooseWeighted(scheduler: string, endpoints: readonly Endpoint[], port: ServicePort): string {
  if (scheduler !== 'rr' && scheduler !== 'lc') return scheduler
  return endpoints.some((endpoint) => shareOf(endpoint, port) !== 1) ? `w${scheduler}` : scheduler
}
