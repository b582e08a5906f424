// Finds the configuration of a node's proxy in the ConfigMap that its pod mounts, which kubeadm, our chart or kustomize has written.

import type { Config } from '../../config/configuration.ts'
import { resolveOptions } from '../../config/flags/options.ts'
import type { ApiRequester } from '../../kube/api-objects.ts'
import { asObject } from '../../kube/decode/fields.ts'
import { ProxyError } from '../../lib/errors.ts'
import { listProxyPods } from './node-proxy.ts'

/** What to look for where no pod says it. Our own comes first: a cluster that has changed over may still have kube-proxy's. */
const usualNames = ['sluice', 'kube-proxy']

/** Returns undefined if there is none, if it may not be read, or if this version does not understand it. */
export async function readClusterConfig(
  api: ApiRequester,
  namespace: string,
  node: string,
): Promise<Config | undefined> {
  for (const name of await listNames(api, namespace, node)) {
    const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/configmaps/${name}`
    const { json } = await api.request({ path, signal: AbortSignal.timeout(10_000) }).catch(noneIfRefused)
    const documents = Object.values(asObject(asObject(json)?.data) ?? {})
    const text = documents.find((one) => typeof one === 'string' && one.includes('kind: KubeProxyConfiguration'))
    const config = typeof text === 'string' ? parseConfig(text) : undefined
    if (config !== undefined) return config
  }
  return undefined
}

/** The chart and kustomize add a checksum to the name, so that only the pod knows it. */
async function listNames(api: ApiRequester, namespace: string, node: string): Promise<readonly string[]> {
  const pods = await listProxyPods(api, namespace, node).catch(noPodsIfRefused)
  const running = pods.filter(({ isRunning }) => isRunning)
  if (running.length === 0) return usualNames
  return running.flatMap(({ configMaps }) => configMaps)
}

function noPodsIfRefused(error: unknown): readonly never[] {
  if (error instanceof ProxyError) return []
  throw error
}

function noneIfRefused(error: unknown): { readonly json: unknown } {
  if (error instanceof ProxyError) return { json: undefined }
  throw error
}

function parseConfig(text: string): Config | undefined {
  try {
    return resolveOptions(['--config=ConfigMap'], () => text).config
  } catch (error) {
    if (error instanceof ProxyError) return undefined
    throw error
  }
}
