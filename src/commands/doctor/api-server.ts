// Checks that the API server can be reached, that it grants the permissions of the proxy, and that its clock agrees with this machine's.

import { type Finding, ok } from '../../backend/finding.ts'
import { listObjects } from '../../kube/api-objects.ts'
import type { Client } from '../../kube/client.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { formatAge } from '../../lib/time.ts'
import type { Flags } from '../command.ts'
import { connectApi } from '../sources/source.ts'

const deadlineMs = 10_000

export async function examineApiServer(flags: Flags): Promise<readonly Finding[]> {
  const kubeconfig = flags.get('kubeconfig')
  if (kubeconfig === undefined && process.env.KUBERNETES_SERVICE_HOST === undefined) return [notAsked]
  let client: Client
  try {
    client = connectApi(kubeconfig ?? '')
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    return [unreachable(error)]
  }
  try {
    return await askServer(client)
  } catch (error) {
    return [unreachable(error)]
  } finally {
    client.close()
  }
}

const notAsked: Finding = {
  level: 'note',
  about: 'API server',
  found: 'not asked',
  meaning: 'Reachability and permissions were not checked.',
  todo: 'Add --kubeconfig with the proxy’s own credentials.',
}

const unreachable = (error: unknown): Finding => ({
  level: 'problem',
  about: 'API server',
  found: describeError(error),
  meaning: 'The proxy keeps what it has programmed, but receives no changes.',
  todo: 'Check address, certificate and token in the kubeconfig, and the route to the server. At start-up that route must not be a service.',
})

async function askServer(client: Client): Promise<readonly Finding[]> {
  const started = performance.now()
  const { json } = await client.request({ path: '/version', signal: AbortSignal.timeout(deadlineMs) })
  const version = (json as { gitVersion?: string }).gitVersion ?? 'unknown'
  const elapsedMs = Math.round(performance.now() - started)
  const findings: Finding[] = [ok('API server', `${client.server}, ${version}, ${elapsedMs} ms`)]
  for (const permission of permissions) findings.push(await checkPermission(client, permission))
  return [...findings, ...(await checkClockSkew(client))]
}

interface Permission {
  readonly group: string
  readonly resource: string
  readonly verbs: readonly string[]
  /** The collection to list if the server does not review access; '' if nothing can be listed. */
  readonly path: string
  /** The proxy works without it. */
  readonly isOptional?: boolean
}

/** All requests of the proxy: what deploy/rbac.yaml allows. */
const permissions: readonly Permission[] = [
  { group: '', resource: 'services', verbs: ['list', 'watch'], path: '/api/v1/services' },
  {
    group: 'discovery.k8s.io',
    resource: 'endpointslices',
    verbs: ['list', 'watch'],
    path: '/apis/discovery.k8s.io/v1/endpointslices',
  },
  {
    group: 'networking.k8s.io',
    resource: 'servicecidrs',
    verbs: ['list', 'watch'],
    path: '/apis/networking.k8s.io/v1/servicecidrs',
  },
  { group: '', resource: 'nodes', verbs: ['get', 'list', 'watch'], path: '/api/v1/nodes' },
  { group: 'events.k8s.io', resource: 'events', verbs: ['create', 'patch'], path: '', isOptional: true },
]

async function checkPermission(client: Client, permission: Permission): Promise<Finding> {
  const { verbs, resource, path } = permission
  const about = `may ${verbs.join(', ')} ${resource}`
  const denied: string[] = []
  for (const verb of verbs) {
    const answer = await reviewAccess(client, permission, verb)
    if (answer === 'unknown') {
      return path === '' ? ok(about, 'the server does not review access') : checkByListing(client, permission, about)
    }
    if (answer === 'denied') denied.push(verb)
  }
  return denied.length === 0 ? ok(about, 'yes') : refused(permission, about, denied.join(', '))
}

async function reviewAccess(
  client: Client,
  { group, resource }: Permission,
  verb: string,
): Promise<'allowed' | 'denied' | 'unknown'> {
  try {
    const { json } = await client.request({
      method: 'POST',
      path: '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews',
      body: {
        apiVersion: 'authorization.k8s.io/v1',
        kind: 'SelfSubjectAccessReview',
        spec: { resourceAttributes: { group, resource, verb } },
      },
      signal: AbortSignal.timeout(deadlineMs),
    })
    return (json as { status?: { allowed?: boolean } }).status?.allowed === true ? 'allowed' : 'denied'
  } catch {
    return 'unknown'
  }
}

async function checkByListing(client: Client, permission: Permission, about: string): Promise<Finding> {
  try {
    await client.request({ path: permission.path, query: { limit: '1' }, signal: AbortSignal.timeout(deadlineMs) })
    return ok(about, 'list works')
  } catch (error) {
    if (error instanceof ProxyError && error.code === 'not-found') return ok(about, 'the server has none')
    return refused(permission, about, describeError(error))
  }
}

const refused = ({ isOptional }: Permission, about: string, why: string): Finding => ({
  level: isOptional ? 'warning' : 'problem',
  about,
  found: `refused: ${why}`,
  meaning: isOptional ? 'The proxy reports problems only in its log.' : 'The proxy cannot work without it.',
  todo: 'kubectl apply -f deploy/rbac.yaml, and use its ServiceAccount.',
})

/** Kubelets write the heartbeats of nodes: a heartbeat from the future means that the clocks differ. */
async function checkClockSkew(client: Client): Promise<readonly Finding[]> {
  const nodes = await listObjects(client, '/api/v1/nodes', { limit: '50' }).catch(() => [])
  const heartbeats = nodes
    .flatMap((node) => (node as NodeWithConditions).status?.conditions ?? [])
    .map(({ lastHeartbeatTime }) => Date.parse(lastHeartbeatTime ?? ''))
    .filter((time) => !Number.isNaN(time))
  const behindMs = Math.max(...heartbeats) - Date.now()
  if (!Number.isFinite(behindMs) || behindMs < 10_000) return []
  return [
    {
      level: 'warning',
      about: 'clock against the cluster',
      found: `${formatAge(behindMs)} behind`,
      meaning: 'Certificates and tokens may be refused, and latencies in the metrics are wrong.',
      todo: 'Synchronise the clocks (chrony, systemd-timesyncd).',
    },
  ]
}

interface NodeWithConditions {
  readonly status?: { readonly conditions?: readonly { readonly lastHeartbeatTime?: string }[] }
}
