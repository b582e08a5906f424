// Resolves where a packet comes from: an address, this node, or a pod by name.

import type { AdminClient } from '../../http/admin-client.ts'
import { listObjects } from '../../kube/api-objects.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp } from '../../lib/ip.ts'
import type { Flags } from '../command.ts'
import { withApi } from './source.ts'

/** Returns the address that --from names; '' for the node itself. */
export async function resolvePacketSource(flags: Flags, proxy: AdminClient | undefined): Promise<string> {
  const given = flags.get('from') ?? ''
  if (given === '' || given === 'node') return ''
  const ip = canonicalIp(given)
  if (ip !== undefined) return ip
  const pod = /^pods?\/(?:([a-z0-9.-]+)\/)?([a-z0-9.-]+)$/.exec(given)
  if (pod === null) {
    throw new ProxyError('question', `--from: "${given}" is not an address, node, or pod/[NAMESPACE/]NAME`)
  }
  const [, namespace = flags.get('namespace') ?? 'default', name = ''] = pod
  const found =
    proxy === undefined || flags.has('kubeconfig') || flags.has('context')
      ? await readPod(flags, namespace, name)
      : await askProxyForPod(proxy, namespace, name)
  const address = canonicalIp((found as { status?: { podIP?: string } } | undefined)?.status?.podIP ?? '')
  if (address === undefined) throw new ProxyError('question', `there is no pod ${namespace}/${name} with an address`)
  return address
}

async function readPod(flags: Flags, namespace: string, name: string): Promise<unknown> {
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`
  const [pod] = await withApi(flags, (api) => listObjects(api, path, { fieldSelector: `metadata.name=${name}` }))
  return pod
}

/** The proxy asks the API server. In a cluster its role does not include pods. */
async function askProxyForPod(proxy: AdminClient, namespace: string, name: string): Promise<unknown> {
  const { object, unknown } = await proxy.object({ resource: 'pods', namespace, name })
  if (unknown === undefined) return object
  throw new ProxyError(
    'question',
    `--from pod/${name}: the proxy cannot read pods (${unknown}); add --kubeconfig FILE together with --socket ${proxy.path}, or give the address`,
  )
}
