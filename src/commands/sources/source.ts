// Where a command's knowledge comes from: a running proxy, an API server, or manifests in a directory.

import { readFileSync } from 'node:fs'
import { hostname } from 'node:os'
import type { Mode, Settings } from '../../backend/backend.ts'
import type { Config } from '../../config/configuration.ts'
import { resolveOptions } from '../../config/flags/options.ts'
import { sluiceVersion } from '../../config/sluice-version.ts'
import { backendFor, settingsOf } from '../../daemon/backend-settings.ts'
import { nodeFacts } from '../../daemon/node-facts.ts'
import type { Inputs } from '../../http/admin.ts'
import { AdminClient, findSocket } from '../../http/admin-client.ts'
import { behaviourOf } from '../../inspect/behaviour-of.ts'
import { DryRun } from '../../inspect/dry-run.ts'
import type { ExplainContext } from '../../inspect/explanation.ts'
import { Client, defaultUserAgent } from '../../kube/client.ts'
import { loadConnection } from '../../kube/kubeconfig.ts'
import {
  endpointSlices,
  ownNode,
  serviceCidrs,
  services,
  type WatchedResource,
} from '../../kube/reflect/watched-resources.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, familyOf, parseCidr } from '../../lib/ip.ts'
import { silentLogger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import { makeNodeView } from '../../model/node.ts'
import type { NodeRecord, NodeView } from '../../model/types.ts'
import { listAddresses } from '../../sys/netlink/interface-addresses.ts'
import type { Flag, Invocation } from '../command.ts'
import { withManifests } from './manifests.ts'
import { ownAddresses } from './own-addresses.ts'

const modes: readonly Mode[] = ['nftables', 'iptables', 'ipvs', 'userspace']

export const modeFlag: Flag = {
  name: 'mode',
  value: 'MODE',
  help: `${modes.join(', ')} (default: that of the running proxy or of --config, else nftables)`,
  choices: modes,
}

export const sourceFlags: readonly Flag[] = [
  {
    name: 'socket',
    value: 'FILE',
    help: 'admin socket of a running proxy (default: the only one in /run/sluice)',
    file: true,
  },
  { name: 'kubeconfig', value: 'FILE', help: 'ask the API server instead of a running proxy', file: true },
  { name: 'manifests', value: 'DIR', help: 'read YAML files instead of asking anybody', file: true },
  { name: 'node', value: 'NAME', help: 'with --kubeconfig or --manifests: seen from this node (default: this host)' },
  { name: 'cluster-cidr', value: 'CIDR[,CIDR]', help: 'with --kubeconfig or --manifests: addresses of pods' },
  { name: 'config', value: 'FILE', help: 'with --kubeconfig or --manifests: a KubeProxyConfiguration', file: true },
]

/** A client of the proxy's own socket, unless other knowledge is asked for. */
export async function proxyOf({ flags }: Pick<Invocation, 'flags'>): Promise<AdminClient | undefined> {
  if (flags.has('kubeconfig') || flags.has('manifests')) return undefined
  return new AdminClient(await findSocket(flags.get('socket') ?? '', process.env))
}

/** All that plans and explanations are made of, from wherever it was asked for. */
export async function inputsOf(invocation: Pick<Invocation, 'flags'>): Promise<Inputs> {
  const proxy = await proxyOf(invocation)
  if (proxy !== undefined) return proxy.inputs()
  return collect(invocation.flags, readerOf(invocation.flags))
}

/** Lists a collection of the API. */
export type Lister = (path: string, query: Readonly<Record<string, string | undefined>>) => Promise<readonly unknown[]>

export type Reader = <T>(use: (list: Lister) => Promise<T>) => Promise<T>

export function readerOf(flags: ReadonlyMap<string, string>): Reader {
  const manifests = flags.get('manifests')
  if (manifests !== undefined) return (use) => withManifests(manifests, (api) => use(listerOf(api)))
  const kubeconfig = flags.get('kubeconfig') ?? ''
  return async (use) => {
    const client = new Client(loadConnection({ kubeconfig, master: '' }), {
      qps: 50,
      burst: 100,
      userAgent: defaultUserAgent,
      log: silentLogger,
      clock: systemClock,
    })
    try {
      return await use(listerOf(client))
    } finally {
      client.close()
    }
  }
}

export type Requester = Pick<Client, 'request'>

const listerOf =
  (api: Requester): Lister =>
  async (path, query) => {
    const { json } = await api.request({ path, query, signal: AbortSignal.timeout(60_000) })
    return (json as { items?: readonly unknown[] }).items ?? []
  }

/** What the files of --manifests say now, and what they would say after the change. */
export async function aroundChange(
  flags: ReadonlyMap<string, string>,
  change: (api: Requester) => Promise<void>,
): Promise<{ readonly before: Inputs; readonly after: Inputs }> {
  return withManifests(flags.get('manifests') as string, async (api, settled) => {
    const reader: Reader = (use) => use(listerOf(api))
    const before = await collect(flags, reader)
    await change(api)
    await settled()
    return { before, after: await collect(flags, reader) }
  })
}

async function collect(flags: ReadonlyMap<string, string>, read: Reader): Promise<Inputs> {
  const config = configOf(flags)
  const name = (flags.get('node') ?? (config.hostnameOverride || hostname())).trim().toLowerCase()
  // Files seldom have Nodes: this machine is then the one that `sluice up` would register.
  const registered = flags.has('manifests') && isThisHost(name) ? await registeredNode(name) : undefined
  return read((list) => readInputs(list, config, name, registered))
}

async function registeredNode(name: string): Promise<NodeRecord> {
  return { name, addresses: await ownAddresses(), podCidrs: [], zone: '', deleting: false, taints: [] }
}

export async function readInputs(list: Lister, config: Config, name: string, registered?: NodeRecord): Promise<Inputs> {
  const [node = registered] = await decoded(list, ownNode(name))
  const interfaceAddresses = await addressesOf(name, node)
  const cidrs = (await decoded(list, serviceCidrs).catch(noneIfUnknown)).flatMap((record) => record.cidrs)
  const facts = { ...nodeFacts(config, { name, record: node, interfaceAddresses }), serviceCidrs: cidrs }
  const all = await decoded(list, services)
  const families = ([4, 6] as const).filter(
    (family) =>
      family === facts.ips.primary ||
      cidrs.some((cidr) => parseCidr(cidr)?.family === family) ||
      all.some(({ clusterIps }) => clusterIps.some(isOf(family))),
  )
  return {
    identity: { node: name, mode: config.mode, pid: 0, version: sluiceVersion, startedAt: 0 },
    settings: settingsOf(config),
    views: families.map((family): NodeView => makeNodeView(facts, family)),
    nodeAddresses: interfaceAddresses,
    services: all,
    slices: await decoded(list, endpointSlices),
  }
}

const isOf = (family: 4 | 6) => (ip: string) => familyOf(ip) === family

/** Servers before 1.33, and small ones, have no ServiceCIDRs. */
function noneIfUnknown(error: unknown): readonly never[] {
  if (error instanceof ProxyError && error.code === 'not-found') return []
  throw error
}

async function decoded<R>(list: Lister, resource: WatchedResource<R>): Promise<readonly R[]> {
  const query = {
    labelSelector: resource.labelSelector,
    fieldSelector: resource.fieldSelectorOptional ? undefined : resource.fieldSelector,
  }
  const objects = await list(resource.resource, query)
  // Lists leave out what their items are.
  return objects.flatMap((json) => resource.decode({ kind: resource.kind, ...(json as object) }).record ?? [])
}

const isThisHost = (name: string): boolean => name === hostname().trim().toLowerCase()

/** Of this host, what its interfaces have; of another node, what its Node object tells. */
async function addressesOf(name: string, node: NodeRecord | undefined): Promise<readonly string[]> {
  if (isThisHost(name)) return (await listAddresses()).map(({ ip }) => ip)
  return ['127.0.0.1', '::1', ...(node?.addresses ?? []).flatMap((ip) => canonicalIp(ip) ?? [])]
}

export function configOf(flags: ReadonlyMap<string, string>): Config {
  const file = flags.get('config')
  const cidr = flags.get('cluster-cidr')
  const argv =
    file === undefined
      ? [`--proxy-mode=${flags.get('mode') ?? 'nftables'}`, ...(cidr === undefined ? [] : [`--cluster-cidr=${cidr}`])]
      : [`--config=${file}`]
  const { config } = resolveOptions(argv, (path) => readFileSync(path, 'utf8'))
  const mode = flags.get('mode') as Mode | undefined
  return mode === undefined ? config : { ...config, mode }
}

/** The backend of a mode under given settings, for planning only. */
export function plannerOf(mode: Mode, settings: Settings) {
  return backendFor({ mode, settings })
}

/** A stage that knows all and touches nothing. */
export async function stageOf(inputs: Inputs): Promise<{ stage: ExplainContext; twin: DryRun }> {
  const { mode } = inputs.identity
  const backend = plannerOf(mode, inputs.settings)
  const twin = await DryRun.open({ backend, views: inputs.views })
  await twin.replaceObjects(inputs)
  const { views, nodeAddresses } = inputs
  return { stage: { desired: twin, backend, dialect: behaviourOf(mode, inputs.settings), views, nodeAddresses }, twin }
}
