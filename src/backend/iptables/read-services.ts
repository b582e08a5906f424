// Reads services from kube-proxy's iptables rules, for a node where no API can be asked: names, addresses and ports, but no endpoints.

import { canonicalIp, type Family, familyOf } from '../../lib/ip.ts'
import { silentLogger } from '../../lib/log.ts'
import type { Protocol, ServiceRecord, SliceRecord } from '../../model/types.ts'
import { findPrograms } from '../iptables-kit/flavour.ts'
import { readSavedTable } from '../iptables-kit/saved-table.ts'
import type { RuleServices } from '../proxy-mode.ts'

/** Returns the families whose rules name at least one service. */
export async function readServices(): Promise<readonly RuleServices[]> {
  const programs = await findPrograms(silentLogger)
  const found: RuleServices[] = []
  for (const family of [4, 6] as const) {
    found.push(parseServices(await readSavedTable(programs, family, 'nat'), family))
  }
  return found.filter(({ services }) => services.length > 0)
}

/** `-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https cluster IP" -m tcp --dport 443 -j …` */
const frontendRule =
  /^-A KUBE-SERVICES -d (\S+)\/\d+ -p (tcp|udp|sctp) .*--comment "(\S+?)(?::(\S*))? (cluster IP|external IP|loadbalancer IP)".* --dport (\d+) /

/** `-A KUBE-NODEPORTS -p tcp -m comment --comment "work/saythx-redis" -m tcp --dport 31269 -j …` */
const nodePortRule = /^-A KUBE-NODEPORTS .*-p (tcp|udp|sctp) .*--comment "?([^\s":]+)(?::([^\s"]*))?"?.* --dport (\d+) /

/** The list of ServiceAddresses for each kind of address in a rule's comment. */
const addressLists = {
  'cluster IP': 'clusterIps',
  'external IP': 'externalIps',
  'loadbalancer IP': 'loadBalancerIps',
} as const

/** What the rules of one service show. */
interface ServiceAddresses {
  readonly clusterIps: string[]
  readonly externalIps: string[]
  readonly loadBalancerIps: string[]
  readonly ports: Map<string, ServiceRecord['ports'][number]>
}

/** Each port gets one made-up endpoint: rules name endpoints by hashes, and no difference between modes depends on them. */
export function parseServices(text: string, family: Family): RuleServices {
  const found = new Map<string, ServiceAddresses>()
  for (const line of text.split('\n')) {
    addFrontend(found, line)
    addNodePort(found, line)
  }
  const complete = [...found].filter(([, { clusterIps }]) => clusterIps.length > 0)
  return {
    family,
    services: complete.map(([key, addresses]) => makeService(key, addresses)),
    slices: complete.map(([key, { ports }], i) => makeSlice(key, [...ports.values()], madeUpAddress(family, i))),
  }
}

function addFrontend(found: Map<string, ServiceAddresses>, line: string): void {
  const match = frontendRule.exec(line)
  if (match === null) return
  const [, address = '', protocol, service = '', name = '', kind, number] = match
  const known = addressesOf(found, service)
  const list = known[addressLists[kind as keyof typeof addressLists]]
  const ip = canonicalIp(address) ?? address
  if (!list.includes(ip)) list.push(ip)
  setPort(known, { name, protocol: protocol as Protocol, port: Number(number) })
}

function addNodePort(found: Map<string, ServiceAddresses>, line: string): void {
  const match = nodePortRule.exec(line)
  if (match === null) return
  const [, protocol, service = '', name = '', number] = match
  setPort(addressesOf(found, service), { name, protocol: protocol as Protocol, nodePort: Number(number) })
}

function addressesOf(found: Map<string, ServiceAddresses>, service: string): ServiceAddresses {
  const known = found.get(service) ?? { clusterIps: [], externalIps: [], loadBalancerIps: [], ports: new Map() }
  found.set(service, known)
  return known
}

interface PortNumbers {
  readonly name: string
  readonly protocol: Protocol
  readonly port?: number
  readonly nodePort?: number
}

/** A port and its node port are in different rules: each rule adds its number. */
function setPort({ ports }: ServiceAddresses, numbers: PortNumbers): void {
  const id = `${numbers.name}/${numbers.protocol}`
  ports.set(id, { port: 0, nodePort: 0, ...ports.get(id), ...numbers })
}

const makeService = (key: string, addresses: ServiceAddresses): ServiceRecord => ({
  key,
  uid: '',
  created: 0,
  type: addresses.loadBalancerIps.length > 0 ? 'LoadBalancer' : 'ClusterIP',
  clusterIps: addresses.clusterIps,
  ports: [...addresses.ports.values()],
  externalIps: addresses.externalIps,
  loadBalancerIps: addresses.loadBalancerIps,
  sourceRanges: [],
  externalPolicy: 'Cluster',
  internalPolicy: 'Cluster',
  affinitySeconds: 0,
  healthCheckNodePort: 0,
})

/** Addresses reserved for documentation. */
const madeUpAddress = (family: Family, i: number): string =>
  family === 4 ? `192.0.2.${(i % 250) + 1}` : `2001:db8:1::${((i % 65_000) + 1).toString(16)}`

const makeSlice = (service: string, ports: ServiceRecord['ports'], ip: string): SliceRecord => ({
  key: `${service}-rules`,
  service,
  family: familyOf(ip),
  ports: ports.map(({ name, protocol, port }) => ({ name, protocol, port })),
  endpoints: [{ ip, node: '', ready: true, serving: true, terminating: false, zoneHints: [], nodeHints: [] }],
  triggered: 0,
})
