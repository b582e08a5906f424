// Chooses where a command gets its inputs: a running proxy, an API server, or manifests in a directory; and plans with them.

import { readFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { defaultMode, findMode, modes } from '../../backend/modes.ts'
import type { Config } from '../../config/configuration.ts'
import { resolveOptions } from '../../config/flags/options.ts'
import { chooseNodeName } from '../../daemon/node/node-facts.ts'
import type { Inputs } from '../../http/admin.ts'
import { AdminClient, findSocket, socketPath } from '../../http/admin-client.ts'
import { DryRun } from '../../inspect/dry-run.ts'
import type { ExplainContext } from '../../inspect/explanation.ts'
import type { ApiRequester } from '../../kube/api-objects.ts'
import { Client, defaultUserAgent } from '../../kube/client.ts'
import { loadConnection } from '../../kube/kubeconfig.ts'
import { ProxyError } from '../../lib/errors.ts'
import { silentLogger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import type { ServiceLimits } from '../../model/limits.ts'
import type { NodeRecord } from '../../model/types.ts'
import { platform } from '../../sys/platform/platform.ts'
import type { Flag, Flags } from '../command.ts'
import { readClusterConfig } from './cluster-config.ts'
import { isThisHost, readFromApi } from './from-api.ts'
import { withManifests } from './manifest-server.ts'
import { connectNodeProxy, contextFlag, findKubeconfig, namespaceOfProxies, proxyNamespaceFlag } from './node-proxy.ts'
import { ownAddresses } from './own-addresses.ts'

const modeNames = modes.map(({ name }) => name)

export const modeFlag: Flag = {
  name: 'mode',
  value: 'MODE',
  help: `${modeNames.join(', ')} (default: the mode of the running proxy or of --config, else ${defaultMode})`,
  choices: modeNames,
}

const socketFlag: Flag = {
  name: 'socket',
  value: 'FILE',
  help: `admin socket of a running proxy (default: the only one in ${platform.sockets.folder})`,
  file: true,
}

const simulateFlag: Flag = {
  name: 'simulate',
  help: 'with --node: compute what its proxy should do from the objects of the API server, without asking that proxy',
}

/** For commands that only a running proxy can answer. */
export const proxyFlags: readonly Flag[] = [
  socketFlag,
  { name: 'node', value: 'NAME', help: 'ask the proxy of this node, through the API server' },
  {
    name: 'kubeconfig',
    value: 'FILE',
    help: 'with --node: how to reach the API server (default: as kubectl)',
    file: true,
  },
  contextFlag,
  proxyNamespaceFlag,
]

export const sourceFlags: readonly Flag[] = [
  socketFlag,
  { name: 'kubeconfig', value: 'FILE', help: 'ask the API server instead of a running proxy', file: true },
  { name: 'manifests', value: 'DIR', help: 'read YAML files instead of asking a running proxy', file: true },
  { name: 'node', value: 'NAME', help: 'with --kubeconfig or --manifests: as on this node (default: this host)' },
  { name: 'cluster-cidr', value: 'CIDR[,CIDR]', help: 'with --kubeconfig or --manifests: addresses of pods' },
  { name: 'config', value: 'FILE', help: 'with --kubeconfig or --manifests: a KubeProxyConfiguration', file: true },
]

/** For commands that a running proxy answers, here or on another node, or that compute the answer themselves. */
export const reachFlags: readonly Flag[] = [
  ...sourceFlags.filter(({ name }) => name !== 'node' && name !== 'kubeconfig'),
  {
    name: 'node',
    value: 'NAME',
    help: 'ask the proxy of this node, through the API server; with --manifests or --simulate: compute as on this node',
  },
  {
    name: 'kubeconfig',
    value: 'FILE',
    help: 'how to reach the API server (default with --node: as kubectl); without --node: compute as on this host',
    file: true,
  },
  contextFlag,
  proxyNamespaceFlag,
  simulateFlag,
]

/**
 * Returns a client of the running proxy: of this machine, or of the node that --node names. Returns undefined if the flags ask for a
 * computed answer.
 */
export async function reachProxy(flags: Flags): Promise<AdminClient | undefined> {
  const node = flags.get('node')?.trim().toLowerCase()
  if (node === undefined && flags.has('simulate')) throw new ProxyError('usage', '--simulate needs --node NAME')
  if (flags.has('manifests') || flags.has('simulate')) return undefined
  if (node === undefined) return connectProxy(flags)
  const isApiNamed = flags.has('kubeconfig') || flags.has('context')
  // On the node itself the socket is enough.
  if (flags.has('socket') || (!isApiNamed && platform.sockets.exists(socketPath(node, process.env)))) {
    return askAs(new AdminClient(flags.get('socket') ?? socketPath(node, process.env)), node)
  }
  return connectNodeProxy(
    connectApi(findKubeconfig(flags, process.env), flags.get('context')),
    namespaceOfProxies(flags),
    node,
  )
}

/** Throws a ProxyError if the proxy is of another node. */
async function askAs(client: AdminClient, node: string): Promise<AdminClient> {
  const { node: actual } = await client.summary()
  if (actual === node) return client
  throw new ProxyError('question', `the proxy at ${client.path} is of node ${actual}, not of ${node}`)
}

/** Returns a client of the running proxy, or undefined if the flags name another source. */
export async function connectProxy(flags: Flags): Promise<AdminClient | undefined> {
  if (flags.has('manifests') || flags.has('simulate')) return undefined
  // With a socket as well the proxy answers, and the API server only tells which address a pod has.
  if (!flags.has('socket') && (flags.has('kubeconfig') || flags.has('context'))) return undefined
  const client = new AdminClient(await findSocket(flags.get('socket') ?? '', process.env))
  const node = flags.get('node')?.trim().toLowerCase()
  return node === undefined ? client : askAs(client, node)
}

/** Reads the inputs of plans and explanations from the source that the flags name. */
export async function readInputs(flags: Flags): Promise<Inputs> {
  const proxy = await connectProxy(flags)
  if (proxy !== undefined) return proxy.inputs()
  return withApi(flags, (api) => readNodeInputs(flags, api))
}

/** Calls `use` with the API server of --manifests or --kubeconfig, and closes it afterwards. */
export async function withApi<T>(flags: Flags, use: (api: ApiRequester) => Promise<T>): Promise<T> {
  const manifests = flags.get('manifests')
  if (manifests !== undefined) return withManifests(manifests, ({ api }) => use(api))
  const client = connectApi(findKubeconfig(flags, process.env), flags.get('context'))
  try {
    return await use(client)
  } finally {
    client.close()
  }
}

/** '' takes the credentials of the pod that this process runs in. */
export function connectApi(kubeconfig: string, context?: string): Client {
  return new Client(loadConnection({ kubeconfig, context, master: '' }), {
    qps: 50,
    burst: 100,
    userAgent: defaultUserAgent,
    log: silentLogger,
    clock: systemClock,
  })
}

/** Reads the inputs from --manifests before and after a change of the objects there. */
export async function readAroundChange(
  flags: Flags,
  change: (api: ApiRequester) => Promise<void>,
): Promise<{ readonly before: Inputs; readonly after: Inputs }> {
  return withManifests(flags.get('manifests') ?? '', async ({ api, waitForSlices }) => {
    const before = await readNodeInputs(flags, api)
    await change(api)
    await waitForSlices()
    return { before, after: await readNodeInputs(flags, api) }
  })
}

async function readNodeInputs(flags: Flags, api: ApiRequester): Promise<Inputs> {
  const node = flags.get('node')?.trim().toLowerCase()
  const { config, podsUnknown } = await findConfig(flags, api, node ?? hostname().toLowerCase())
  const name = node ?? chooseNodeName(config, hostname())
  // Manifests rarely contain Nodes: this machine is then the node that `sluice up` would register.
  const isLocal = flags.has('manifests')
  const fallback = isLocal && isThisHost(name) ? await describeThisNode(name) : undefined
  const query = { name, config, fallback, nodesOptional: isLocal }
  return { ...(await readFromApi(api, query)), limits: limitsFrom(process.env), podsUnknown }
}

interface FoundConfig {
  readonly config: Config
  /** Nothing says how the proxy detects its pods: the configuration is only a guess. */
  readonly podsUnknown: boolean
}

/** The flags go first, then what the cluster says about its proxies, then the defaults. */
async function findConfig(flags: Flags, api: ApiRequester, node: string): Promise<FoundConfig> {
  const given = configFrom(flags)
  if (flags.has('config') || flags.has('cluster-cidr')) return { config: given, podsUnknown: false }
  const found = flags.has('manifests') ? undefined : await readClusterConfig(api, namespaceOfProxies(flags), node)
  if (found === undefined) return { config: given, podsUnknown: true }
  // The override of a ConfigMap would be one for every node.
  const config = { ...found, hostnameOverride: '' }
  return { config: flags.has('mode') ? { ...config, mode: given.mode } : config, podsUnknown: false }
}

async function describeThisNode(name: string): Promise<NodeRecord> {
  return { name, addresses: await ownAddresses(), podCidrs: [], zone: '', deleting: false, taints: [] }
}

/** Returns the configuration that --config, --mode and --cluster-cidr ask for. */
export function configFrom(flags: Flags): Config {
  const file = flags.get('config')
  const cidr = flags.get('cluster-cidr')
  const argv =
    file === undefined
      ? [`--proxy-mode=${flags.get('mode') ?? defaultMode}`, ...(cidr === undefined ? [] : [`--cluster-cidr=${cidr}`])]
      : [`--config=${file}`]
  const { config } = resolveOptions(argv, (path) => readFileSync(path, 'utf8'))
  const mode = flags.get('mode') as Config['mode'] | undefined
  return mode === undefined ? config : { ...config, mode }
}

/** Returns the limits of the SluiceConfiguration that SLUICE_CONFIG names, else the defaults. */
export const limitsFrom = (env: NodeJS.ProcessEnv): ServiceLimits =>
  resolveOptions([], (path) => readFileSync(path, 'utf8'), env).sluice.limits

/** A dry run that holds the inputs, and what `explain` needs to answer from it. The caller closes the dry run. */
export interface PlannedInputs {
  readonly dryRun: DryRun
  readonly context: ExplainContext
}

export async function planInputs({
  identity,
  settings,
  limits,
  views,
  nodeAddresses,
  podsUnknown = false,
  ...objects
}: Inputs): Promise<PlannedInputs> {
  const mode = findMode(identity.mode)
  const backend = mode.makeBackend(settings)
  const dryRun = await DryRun.open({ backend, views, limits })
  await dryRun.replaceObjects(objects)
  const behaviour = mode.behaviour(settings)
  return { dryRun, context: { desired: dryRun, backend, mode, behaviour, views, nodeAddresses, podsUnknown } }
}
