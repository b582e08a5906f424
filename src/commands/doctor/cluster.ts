// What of the cluster matters to a proxy: the one that runs here, the API server, what it lets us do, and whether clocks agree.

import type { Mode } from '../../backend/backend.ts'
import { type Finding, ok } from '../../backend/finding.ts'
import type { Summary } from '../../http/admin.ts'
import { AdminClient, findSocket } from '../../http/admin-client.ts'
import { Client, defaultUserAgent } from '../../kube/client.ts'
import { loadConnection } from '../../kube/kubeconfig.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { silentLogger } from '../../lib/log.ts'
import { count } from '../../lib/plural.ts'
import { systemClock } from '../../lib/time.ts'
import { formatAge } from '../terminal.ts'

/** A proxy that runs here: its mode if it answers, and what is to be said of it. */
interface ProxyExamined {
  readonly mode: Mode | undefined
  readonly findings: readonly Finding[]
}

export async function clusterFindings(flags: ReadonlyMap<string, string>): Promise<readonly Finding[]> {
  const kubeconfig = flags.get('kubeconfig')
  if (kubeconfig !== undefined || process.env.KUBERNETES_SERVICE_HOST !== undefined)
    return apiFindings(kubeconfig ?? '')
  return [
    {
      level: 'note',
      about: 'API server',
      found: 'not asked',
      meaning: 'Reachability and permissions were not looked at.',
      todo: 'Add --kubeconfig with the proxy’s own credentials.',
    },
  ]
}

export async function examineProxy(socket: string): Promise<ProxyExamined> {
  try {
    const path = await findSocket(socket, process.env)
    const summary = await new AdminClient(path).summary()
    return { mode: summary.mode, findings: proxyFindings(summary) }
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    if (error.code === 'no-proxy') return { mode: undefined, findings: [ok('running proxy', 'none on this machine')] }
    const several = socket === '' && error.code === 'several'
    return {
      mode: undefined,
      findings: [
        {
          level: 'warning',
          about: 'running proxy',
          found: describeError(error),
          meaning: several ? 'None of them was asked.' : 'A socket is there, but nobody answers as expected.',
          todo: several
            ? 'Name one with --socket. If two serve this node, stop one: each undoes what the other does.'
            : 'Is the proxy running, and are you its user (root)?',
        },
      ],
    }
  }
}

function proxyFindings(summary: Summary): readonly Finding[] {
  const about = `running proxy (${summary.node})`
  const failed = summary.families.find(({ lastSync }) => lastSync?.ok === false)
  const found: Finding[] = [
    failed === undefined
      ? ok(
          about,
          `mode ${summary.mode}, ${count(summary.services, 'service')}, up ${formatAge(Date.now() - summary.startedAt)}`,
        )
      : {
          level: 'problem',
          about,
          found: `last sync failed: ${failed.lastSync?.error}`,
          meaning: 'The kernel has the state of the last sync that worked; changes since then are missing.',
          todo: 'The error says which part of the kernel or which program refused; it is tried again by itself.',
        },
  ]
  if (summary.quarantined.length > 0) {
    found.push({
      level: 'problem',
      about: 'quarantine',
      found: summary.quarantined.map(({ service, error }) => `${service}: ${error}`).join('; '),
      meaning: 'These services cannot be programmed; all others go on.',
      todo: 'sluice status SERVICE shows the entries; correct the object, or report it as a bug.',
    })
  }
  if (summary.conflicts.length > 0) {
    found.push({
      level: 'warning',
      about: 'conflicts',
      found: summary.conflicts
        .map(({ frontend, winner, loser }) => `${frontend}: ${winner} before ${loser}`)
        .join('; '),
      meaning: 'Two services claim one address; the older one has it.',
      todo: 'Give one of them another address or node port.',
    })
  }
  if (summary.counters.drifts > 0) {
    found.push({
      level: 'warning',
      about: 'rules changed by others',
      found: count(summary.counters.drifts, 'time'),
      meaning: 'Somebody else changes or flushes our rules; they are put back each time.',
      todo: 'The log and the Events of the Node name the process: keep firewall reloads from flushing everything.',
    })
  }
  return found
}

/** All that the proxy asks of the API: what deploy/rbac.yaml allows. */
const permissions = [
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
  { group: 'events.k8s.io', resource: 'events', verbs: ['create', 'patch'], path: '' },
] as const

async function apiFindings(kubeconfig: string): Promise<readonly Finding[]> {
  let client: Client
  try {
    client = new Client(loadConnection({ kubeconfig, master: '' }), {
      qps: 50,
      burst: 100,
      userAgent: defaultUserAgent,
      log: silentLogger,
      clock: systemClock,
    })
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    return [unreachable(error)]
  }
  try {
    const started = performance.now()
    const { json } = await client.request({ path: '/version', signal: AbortSignal.timeout(10_000) })
    const version = (json as { gitVersion?: string }).gitVersion ?? 'unknown'
    const found: Finding[] = [
      ok('API server', `${client.server}, ${version}, ${Math.round(performance.now() - started)} ms`),
    ]
    for (const permission of permissions) found.push(await permitted(client, permission))
    found.push(...(await clockSkew(client)))
    return found
  } catch (error) {
    return [unreachable(error)]
  } finally {
    client.close()
  }
}

const unreachable = (error: unknown): Finding => ({
  level: 'problem',
  about: 'API server',
  found: describeError(error),
  meaning: 'The proxy keeps what it has programmed, but hears of no change.',
  todo: 'Check address, certificate and token in the kubeconfig, and the way to the server; at start-up that way must not be a service.',
})

async function permitted(client: Client, permission: (typeof permissions)[number]): Promise<Finding> {
  const { group, resource, verbs, path } = permission
  const about = `may ${verbs.join(', ')} ${resource}`
  const denied: string[] = []
  for (const verb of verbs) {
    const answer = await mayI(client, group, resource, verb)
    if (answer === 'unknown') return path === '' ? ok(about, 'cannot be asked here') : byListing(client, about, path)
    if (answer === 'no') denied.push(verb)
  }
  return denied.length === 0 ? ok(about, 'yes') : refused(about, denied.join(', '))
}

async function mayI(client: Client, group: string, resource: string, verb: string): Promise<'yes' | 'no' | 'unknown'> {
  try {
    const { json } = await client.request({
      method: 'POST',
      path: '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews',
      body: {
        apiVersion: 'authorization.k8s.io/v1',
        kind: 'SelfSubjectAccessReview',
        spec: { resourceAttributes: { group, resource, verb } },
      },
      signal: AbortSignal.timeout(10_000),
    })
    return (json as { status?: { allowed?: boolean } }).status?.allowed === true ? 'yes' : 'no'
  } catch {
    return 'unknown'
  }
}

async function byListing(client: Client, about: string, path: string): Promise<Finding> {
  try {
    await client.request({ path, query: { limit: '1' }, signal: AbortSignal.timeout(10_000) })
    return ok(about, 'list works')
  } catch (error) {
    if (error instanceof ProxyError && error.code === 'not-found') return ok(about, 'the server has none')
    return refused(about, describeError(error))
  }
}

const refused = (about: string, what: string): Finding => ({
  level: about.includes('events') ? 'warning' : 'problem',
  about,
  found: `refused: ${what}`,
  meaning: about.includes('events') ? 'What goes wrong is told in the log only.' : 'The proxy cannot work without it.',
  todo: 'kubectl apply -f deploy/rbac.yaml, and use its ServiceAccount.',
})

/** Heartbeats of nodes are stamped by kubelets: one from the future means that clocks differ. */
async function clockSkew(client: Client): Promise<readonly Finding[]> {
  try {
    const { json } = await client.request({
      path: '/api/v1/nodes',
      query: { limit: '50' },
      signal: AbortSignal.timeout(10_000),
    })
    const beats = ((json as { items?: readonly unknown[] }).items ?? []).flatMap((node) =>
      ((node as { status?: { conditions?: readonly { lastHeartbeatTime?: string }[] } }).status?.conditions ?? []).map(
        ({ lastHeartbeatTime }) => Date.parse(lastHeartbeatTime ?? ''),
      ),
    )
    const newest = Math.max(...beats.filter((time) => !Number.isNaN(time)))
    if (!Number.isFinite(newest) || newest - Date.now() < 10_000) return []
    return [
      {
        level: 'warning',
        about: 'clock against the cluster',
        found: `${formatAge(newest - Date.now())} behind`,
        meaning: 'Certificates and tokens may be refused, and latencies in the metrics are wrong.',
        todo: 'Synchronise the clocks (chrony, systemd-timesyncd).',
      },
    ]
  } catch {
    // Not being able to list nodes has been told above.
    return []
  }
}
