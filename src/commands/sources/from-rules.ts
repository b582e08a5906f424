// Services as kube-proxy's own rules tell of them, on a node where nobody else can be asked: names, addresses and ports, no endpoints.

import { hostname } from 'node:os'
import type { Mode } from '../../backend/backend.ts'
import { findPrograms } from '../../backend/iptables-kit/programs.ts'
import { saved } from '../../backend/leftovers.ts'
import type { Config } from '../../config/configuration.ts'
import { sluiceVersion } from '../../config/sluice-version.ts'
import { settingsOf } from '../../daemon/backend-settings.ts'
import { nodeFacts } from '../../daemon/node-facts.ts'
import type { Inputs } from '../../http/admin.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, type Family, familyOf } from '../../lib/ip.ts'
import { silentLogger } from '../../lib/log.ts'
import { makeNodeView } from '../../model/node.ts'
import type { Protocol, ServiceRecord, SliceRecord } from '../../model/types.ts'
import { listAddresses } from '../../sys/netlink/interface-addresses.ts'

export async function readFromRules(mode: Mode, config: Config): Promise<Inputs> {
  if (mode !== 'iptables') {
    throw new ProxyError(
      'migrate',
      `rules of mode ${mode} do not name services: add --kubeconfig, or --socket of the proxy`,
    )
  }
  const programs = await findPrograms(silentLogger)
  const name = hostname().toLowerCase()
  const interfaces = await listAddresses()
  const own = interfaces.filter(({ scope }) => scope === 'global').map(({ ip }) => ip)
  const first = ([4, 6] as const).flatMap((family) => own.find((ip) => familyOf(ip) === family) ?? [])
  const record = { name, addresses: first, podCidrs: [], zone: '', deleting: false, taints: [] }
  const interfaceAddresses = interfaces.map(({ ip }) => ip)
  const facts = nodeFacts(config, { name, record, interfaceAddresses })
  const found = { services: [] as ServiceRecord[], slices: [] as SliceRecord[] }
  const families: Family[] = []
  for (const family of [4, 6] as const) {
    const { services, slices } = parseRules(await saved(programs, family, 'nat'), family)
    if (services.length === 0) continue
    families.push(family)
    found.services.push(...services)
    found.slices.push(...slices)
  }
  if (families.length === 0) throw new ProxyError('migrate', 'kube-proxy’s rules name no service: add --kubeconfig')
  return {
    identity: { node: name, mode, pid: 0, version: sluiceVersion, startedAt: 0 },
    settings: settingsOf(config),
    views: families.map((family) => makeNodeView(facts, family)),
    nodeAddresses: interfaceAddresses,
    ...found,
  }
}

/** `-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https cluster IP" -m tcp --dport 443 -j …` */
const frontendRule =
  /^-A KUBE-SERVICES -d (\S+)\/\d+ -p (tcp|udp|sctp) .*--comment "(\S+?)(?::(\S*))? (cluster IP|external IP|loadbalancer IP)".* --dport (\d+) /
const nodePortRule = /^-A KUBE-NODEPORTS .*-p (tcp|udp|sctp) .*--comment "?([^\s":]+)(?::([^\s"]*))?"?.* --dport (\d+) /

/** Endpoints are made up, one per port, since rules show them under names that are hashes; they play no part in what differs. */
export function parseRules(
  text: string,
  family: Family,
): { services: readonly ServiceRecord[]; slices: readonly SliceRecord[] } {
  const drafts = new Map<string, Draft>()
  const draftOf = (key: string): Draft => {
    const known = drafts.get(key) ?? { clusterIps: [], externalIps: [], loadBalancerIps: [], ports: new Map() }
    drafts.set(key, known)
    return known
  }
  for (const line of text.split('\n')) {
    const frontend = frontendRule.exec(line)
    if (frontend !== null) {
      const [, address, protocol, key, port = '', kind, number] = frontend as unknown as [
        string,
        string,
        Protocol,
        string,
        string | undefined,
        string,
        string,
      ]
      const draft = draftOf(key)
      const ip = canonicalIp(address) ?? address
      const list =
        kind === 'cluster IP' ? draft.clusterIps : kind === 'external IP' ? draft.externalIps : draft.loadBalancerIps
      if (!list.includes(ip)) list.push(ip)
      const id = `${port}/${protocol}`
      draft.ports.set(id, { name: port, protocol, port: Number(number), nodePort: draft.ports.get(id)?.nodePort ?? 0 })
      continue
    }
    const nodePort = nodePortRule.exec(line)
    if (nodePort === null) continue
    const [, protocol, key, port = '', number] = nodePort as unknown as [
      string,
      Protocol,
      string,
      string | undefined,
      string,
    ]
    const { ports } = draftOf(key)
    const id = `${port}/${protocol}`
    ports.set(id, { name: port, protocol, port: ports.get(id)?.port ?? 0, nodePort: Number(number) })
  }
  const complete = [...drafts].filter(([, { clusterIps }]) => clusterIps.length > 0)
  return {
    services: complete.map(([key, draft]) => serviceOf(key, draft)),
    slices: complete.map(([key, { ports }], i) => sliceOf(key, [...ports.values()], family, i)),
  }
}

interface Draft {
  readonly clusterIps: string[]
  readonly externalIps: string[]
  readonly loadBalancerIps: string[]
  readonly ports: Map<string, ServiceRecord['ports'][number]>
}

const serviceOf = (key: string, draft: Draft): ServiceRecord => ({
  key,
  uid: '',
  created: 0,
  type: draft.loadBalancerIps.length > 0 ? 'LoadBalancer' : 'ClusterIP',
  clusterIps: draft.clusterIps,
  ports: [...draft.ports.values()],
  externalIps: draft.externalIps,
  loadBalancerIps: draft.loadBalancerIps,
  sourceRanges: [],
  externalPolicy: 'Cluster',
  internalPolicy: 'Cluster',
  affinitySeconds: 0,
  healthCheckNodePort: 0,
})

const sliceOf = (service: string, ports: ServiceRecord['ports'], family: Family, i: number): SliceRecord => ({
  key: `${service}-rules`,
  service,
  family,
  ports: ports.map(({ name, protocol, port }) => ({ name, protocol, port })),
  endpoints: [
    {
      ip: family === 4 ? `192.0.2.${(i % 250) + 1}` : `2001:db8:1::${(i % 65_000) + 1}`,
      node: '',
      ready: true,
      serving: true,
      terminating: false,
      zoneHints: [],
      nodeHints: [],
    },
  ],
  triggered: 0,
})
