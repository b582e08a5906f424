// Reaches the proxy of a node through the API server: finds its pod there, and connects to its admin socket by exec in that pod.

import { existsSync } from 'node:fs'
import { Agent } from 'node:http'
import { homedir } from 'node:os'
import { delimiter, join } from 'node:path'
import type { Duplex } from 'node:stream'
import { AdminClient } from '../../http/admin-client.ts'
import { type ApiRequester, listObjects } from '../../kube/api-objects.ts'
import type { Client } from '../../kube/client.ts'
import { asObject, type JsonObject, readString } from '../../kube/decode/fields.ts'
import { DeferredStream, type ReferencedStream } from '../../kube/streams/deferred-stream.ts'
import { openExecStream } from '../../kube/streams/exec-stream.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Flag, Flags } from '../command.ts'

export const contextFlag: Flag = {
  name: 'context',
  value: 'NAME',
  help: 'context of the kubeconfig (default: its current context)',
}

export const proxyNamespaceFlag: Flag = {
  name: 'proxy-namespace',
  value: 'NAME',
  help: 'namespace of the pods of the proxies (default kube-system)',
}

/** Returns the kubeconfig that kubectl would read: of the flag, of KUBECONFIG (the first file that exists), or ~/.kube/config; '' in a pod. */
export function findKubeconfig(flags: Flags, env: NodeJS.ProcessEnv): string {
  const given = flags.get('kubeconfig') ?? ''
  if (given !== '') return given
  const listed = (env.KUBECONFIG ?? '').split(delimiter).filter((path) => path !== '')
  const candidates = listed.length > 0 ? listed : [join(homedir(), '.kube', 'config')]
  const found = candidates.find((path) => existsSync(path))
  if (found !== undefined) return found
  if (listed.length === 0 && (env.KUBERNETES_SERVICE_HOST ?? '') !== '') return ''
  throw new ProxyError(
    'usage',
    `there is no kubeconfig: ${candidates.join(', ')} does not exist; give --kubeconfig FILE`,
  )
}

export interface ProxyPod {
  readonly namespace: string
  readonly name: string
  readonly node: string
  readonly container: string
  readonly image: string
  readonly isRunning: boolean
  /** The names of the ConfigMaps that it mounts. */
  readonly configMaps: readonly string[]
}

export const namespaceOfProxies = (flags: Flags): string => flags.get('proxy-namespace') ?? 'kube-system'

/** Lists the pods of service proxies, of Sluice or kube-proxy, on one node or on all. */
export async function listProxyPods(api: ApiRequester, namespace: string, node = ''): Promise<readonly ProxyPod[]> {
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`
  const objects = await listObjects(api, path, node === '' ? {} : { fieldSelector: `spec.nodeName=${node}` })
  return objects.flatMap((object) => readProxyPod(asObject(object) ?? {}, namespace) ?? [])
}

/** kubeadm and our manifests label the pods k8s-app=kube-proxy; some distributions write component=kube-proxy. */
function readProxyPod(pod: JsonObject, namespace: string): ProxyPod | undefined {
  const metadata = asObject(pod.metadata)
  const labels = asObject(metadata?.labels) ?? {}
  const isProxy =
    labels['k8s-app'] === 'kube-proxy' ||
    labels.component === 'kube-proxy' ||
    labels['app.kubernetes.io/name'] === 'sluice'
  if (!isProxy) return undefined
  const spec = asObject(pod.spec)
  const containers = listChildren(spec?.containers)
  const container = containers.find((one) => one.name === 'kube-proxy' || one.name === 'sluice') ?? containers[0]
  return {
    namespace,
    name: readString(metadata, 'name'),
    node: readString(spec, 'nodeName'),
    container: readString(container, 'name'),
    image: readString(container, 'image'),
    isRunning: asObject(pod.status)?.phase === 'Running' && metadata?.deletionTimestamp === undefined,
    configMaps: listChildren(spec?.volumes).flatMap((volume) => readString(asObject(volume.configMap), 'name') || []),
  }
}

const listChildren = (value: unknown): readonly JsonObject[] =>
  Array.isArray(value) ? value.map((one) => asObject(one) ?? {}) : []

/**
 * Throws a ProxyError that says why the node's proxy cannot be asked. The caller closes the client that this returns, which closes that of
 * the API server: a dashboard connects again and again while a node is away.
 */
export async function connectNodeProxy(api: Client, namespace: string, node: string): Promise<AdminClient> {
  const pod = await findPod(api, namespace, node).catch((error: unknown) => {
    api.close()
    throw error
  })
  const target = { namespace, pod: pod.name, container: pod.container, command: ['sluice', 'connect', node] }
  const open = () => openExecStream(api, target).catch((error: unknown) => Promise.reject(explain(error, pod)))
  const client = new AdminClient(
    `the proxy on ${node} (pod ${namespace}/${pod.name})`,
    makeAgent(open, () => api.close()),
  )
  // Finds out now whether it answers: the first question of a command would only say that the connection ended.
  await client.summary().catch((error: unknown) => {
    client.close()
    throw explain(error, pod)
  })
  return client
}

async function findPod(api: Client, namespace: string, node: string): Promise<ProxyPod> {
  const pods = await listProxyPods(api, namespace, node)
  const pod = pods.find(({ isRunning }) => isRunning)
  if (pod !== undefined) return pod
  const nodes = (await listObjects(api, '/api/v1/nodes', {}).catch(() => [])).map((one) =>
    readString(asObject(asObject(one)?.metadata), 'name'),
  )
  if (nodes.length > 0 && !nodes.includes(node)) {
    throw new ProxyError('question', `there is no node ${node}; there is ${nodes.slice(0, 20).join(', ')}`)
  }
  const why = pods.length === 0 ? 'no pod of a proxy is there' : `pod ${pods[0]?.name} does not run`
  throw new ProxyError(
    'no-proxy',
    `the proxy on ${node} cannot be asked: ${why} (namespace ${namespace}; --proxy-namespace names another). --simulate computes what it should do`,
  )
}

function explain(error: unknown, { node, name, image }: ProxyPod): unknown {
  if (!(error instanceof ProxyError)) return error
  const advice = '--simulate computes what Sluice should do there'
  const text = describeError(error)
  if (/executable file not found|no such file or directory/.test(text)) {
    return new ProxyError(
      'no-proxy',
      `${node} does not run Sluice, or a version without "sluice connect": pod ${name} has the image ${image}. ${advice}`,
    )
  }
  if (error.code === 'forbidden') {
    return new ProxyError(
      'forbidden',
      `the proxy on ${node} cannot be asked: ${text}; docs/fleet.md has the role. ${advice}`,
    )
  }
  return new ProxyError(error.code, `the proxy on ${node} cannot be asked: ${text}. ${advice}`, { cause: error.cause })
}

/** Each connection is a program in the pod: few of them, and each is used for many questions. */
function makeAgent(open: () => Promise<ReferencedStream>, onClose: () => void): Agent {
  const agent = new Agent({ keepAlive: true, maxSockets: 3 })
  const createConnection = () => asSocket(new DeferredStream(open()))
  const destroy = () => {
    Agent.prototype.destroy.call(agent)
    onClose()
  }
  return Object.assign(agent, { createConnection, destroy })
}

/** Adds the methods of a socket that an HTTP agent calls. */
function asSocket(stream: Duplex): Duplex {
  const ignore = () => stream
  return Object.assign(stream, { setKeepAlive: ignore, setNoDelay: ignore, setTimeout: ignore })
}
