// Tests the running program with a real API server: connections on the node show what it does.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { AdminClient } from '../../../src/http/admin-client.ts'
import { until } from '../../support/until.ts'
import type { AuditRecord } from '../cluster.ts'
import {
  type ClusterFixture,
  NODE,
  NOWHERE,
  ONE,
  RBAC,
  SIX,
  startClusterFixture,
  THREE,
  TWO,
} from '../cluster-fixture.ts'
import { list, service, slice } from '../kubectl-manifests.ts'
import { requestApi } from '../request-api.ts'
import { type RunningProxy, startProxy } from '../start-proxy.ts'

export function runningProxySuite(binaries: string | undefined): void {
  describe.skipIf(binaries === undefined)('the running proxy', () => {
    let fixture: ClusterFixture
    let proxy: RunningProxy
    let socket: string
    beforeAll(async () => {
      fixture = await startClusterFixture(binaries!)
      await fixture.writeToken('token-1')
      const { cluster, space, tokenFile } = fixture
      const kubeconfig = cluster.writeKubeconfig('proxy', { tokenFile }, space.server)
      socket = join(cluster.directory, 'admin.sock')
      const env = { ...process.env, SLUICE_ADMIN_SOCKET: socket }
      proxy = await startProxy({ space, directory: cluster.directory, kubeconfig, nodeName: NODE, env })
    })
    afterAll(async () => {
      await proxy?.child.end('SIGTERM')
      await fixture?.stop()
    })

    it('J5: follows create, change and delete by kubectl, in both families', async () => {
      const { cluster, space, reaches } = fixture
      await cluster.apply(list(service('web'), slice('web-4', 'web', [ONE]), slice('web-6', 'web', [SIX])))
      const [four, six] = await fixture.clusterIps('web')
      await reaches(four!, ONE)
      await reaches(six!, SIX)

      await cluster.apply(slice('web-4', 'web', [TWO]))
      await reaches(four!, TWO)
      expect(await space.dial(six!, 80)).toBe(SIX)

      await cluster.kubectl(['delete', 'endpointslice', 'web-4'])
      await reaches(four!, 'ECONNREFUSED') // J1: a service without endpoints refuses

      await cluster.kubectl(['delete', 'service/web', 'endpointslice/web-6'])
      await reaches(six!, NOWHERE)
      await reaches(four!, NOWHERE)
    })

    it('remembers which version of an object changed, and the manager that changed it', async () => {
      const { cluster, reaches } = fixture
      await cluster.apply(list(service('past'), slice('past-4', 'past', [ONE])))
      const [four] = await fixture.clusterIps('past')
      await reaches(four!, ONE)
      const labels = ['label', 'endpointslice', 'past-4', 'unread=1', '--field-manager=day-shift']
      await cluster.kubectl(labels)
      const patch = JSON.stringify([{ op: 'replace', path: '/endpoints/0/addresses/0', value: TWO }])
      await cluster.kubectl([
        ...['patch', 'endpointslice', 'past-4', '--type=json', `--patch=${patch}`, '--field-manager=night-shift'],
      ])
      await reaches(four!, TWO)
      const stored = JSON.parse(await cluster.kubectl(['get', 'endpointslice', 'past-4', '-o', 'json']))
      const question = { service: 'default/past', since: 0, beforeSync: 0, afterSync: 0, limit: 100 }
      const { records } = await new AdminClient(socket).history(question)
      const changes = records.flatMap(({ objects }) => objects).filter(({ name }) => name === 'default/past-4')
      expect(changes[0]).toMatchObject({
        action: 'changed',
        resourceVersion: stored.metadata.resourceVersion,
        operation: 'Update',
        parts: [
          { part: `endpoint ${ONE}:8080/tcp`, after: '' },
          { part: `endpoint ${TWO}:8080/tcp`, before: '' },
        ],
      })
      // Managed fields have seconds: the label may have been set in the same second.
      expect(changes[0]?.manager.split(' or ')).toContain('night-shift')
      expect(changes.at(-1)).toMatchObject({ action: 'added', manager: 'kubectl-client-side-apply' })
      // The label changed nothing that a proxy reads.
      expect(changes).toHaveLength(2)
      await cluster.kubectl(['delete', 'service/past', 'endpointslice/past-4'])
    })

    it('J14: follows the label service-proxy-name, by which the API server filters for us', async () => {
      const { cluster, reaches } = fixture
      await cluster.apply(list(service('label'), slice('label-4', 'label', [ONE])))
      const [four] = await fixture.clusterIps('label')
      await reaches(four!, ONE)
      await cluster.kubectl(['label', 'service', 'label', 'service.kubernetes.io/service-proxy-name=other'])
      await reaches(four!, NOWHERE)
      await cluster.kubectl(['label', 'service', 'label', 'service.kubernetes.io/service-proxy-name-'])
      await reaches(four!, ONE)
    })

    it('J6: keeps serving while the API server is dead, and has missed nothing when it is back', async () => {
      const { cluster, gate, space, reaches } = fixture
      await cluster.apply(list(service('stay'), slice('stay-4', 'stay', [ONE])))
      await cluster.apply(list(service('leave'), slice('leave-4', 'leave', [ONE])))
      const [stay] = await fixture.clusterIps('stay')
      const [leave] = await fixture.clusterIps('leave')
      await reaches(stay!, ONE)
      await reaches(leave!, ONE)

      await cluster.killApiServer()
      expect(await space.dial(stay!, 80)).toBe(ONE)
      expect(await proxy.health()).toBe(200)

      // Changes before the proxy reconnects must reach it as well. The proxy connects through the gate, kubectl does not.
      gate.shut()
      await cluster.startApiServer()
      await cluster.kubectl(['delete', 'service/leave', 'endpointslice/leave-4'])
      await cluster.apply(list(slice('stay-4', 'stay', [TWO]), service('fresh'), slice('fresh-4', 'fresh', [THREE])))
      const [fresh] = await fixture.clusterIps('fresh')
      expect(await space.dial(stay!, 80)).toBe(ONE)
      gate.open()
      await reaches(stay!, TWO, 60_000) // the back-off may have grown to 30 s
      await reaches(fresh!, THREE)
      await reaches(leave!, NOWHERE)
      await cluster.kubectl(['delete', 'service/fresh', 'endpointslice/fresh-4'])
      await reaches(fresh!, NOWHERE) // the new watch delivers changes
    })

    // Without its cache the API server asks etcd for every watch, so etcd answers "compacted". Two changes behind, the answer is 410.
    // One behind, etcd still has the change but not the value before it: the API server answers 500, unless something else was written
    // in between.
    it.each([
      { changes: 2, answers: [410] },
      { changes: 1, answers: [500, 410] },
    ])('lists again when its revision was compacted away, $changes behind', async ({ changes, answers }) => {
      const { cluster, gate, reaches } = fixture
      await cluster.useFlags('--watch-cache=false')
      const name = `compact-${changes}`
      const version = async () => {
        const found = await cluster.kubectl(['get', 'endpointslice', `${name}-4`, '-o', 'json'])
        return JSON.parse(found).metadata.resourceVersion as string
      }
      await cluster.apply(list(service(name), slice(`${name}-4`, name, [ONE])))
      const [four] = await fixture.clusterIps(name)
      await reaches(four!, ONE)
      const before = await version()
      gate.shut()
      for (const endpoint of [TWO, THREE].slice(-changes)) await cluster.apply(slice(`${name}-4`, name, [endpoint]))
      await cluster.compact()
      expect(answers).toContain(await watchError(before))
      gate.open()
      await reaches(four!, THREE)
    })

    /** Returns the code with which a watch of EndpointSlices from that version is answered. */
    async function watchError(resourceVersion: string): Promise<number> {
      const token = readFileSync(fixture.tokenFile, 'utf8')
      const query = `watch=1&timeoutSeconds=5&resourceVersion=${resourceVersion}`
      const { body } = await requestApi(fixture.cluster, {
        path: `/apis/discovery.k8s.io/v1/endpointslices?${query}`,
        token,
      })
      return JSON.parse(body.split('\n')[0]!).object.code
    }

    it('reads a new token from its file when the old one is refused', async () => {
      const { cluster, reaches } = fixture
      const fresh = await fixture.writeToken('token-2')
      await cluster.kubectl(['delete', 'secret', 'token-1', '-n', 'kube-system'])
      await cluster.killApiServer() // its cache would accept the old token for a while
      await cluster.startApiServer()
      await cluster.apply(list(service('rotated'), slice('rotated-4', 'rotated', [ONE])))
      const [four] = await fixture.clusterIps('rotated')
      await reaches(four!, ONE, 90_000) // a token may be kept for a minute
      const credential = fixture.requests().at(-1)?.user?.extra?.['authentication.kubernetes.io/credential-id']
      expect(credential).toEqual([`JTI=${identity(fresh)}`])
    })

    it('needs no more than deploy/rbac.yaml allows, and no less', async () => {
      const event = 'create events.k8s.io/events'
      await until('an event was sent', () => fixture.requests().map(action).includes(event))
      const requests = fixture.requests().filter((record) => !starting(record))
      expect(requests.filter((record) => record.responseStatus?.code === 403)).toEqual([])
      const allowed = allowances()
      const used = new Set(requests.map(action))
      expect([...used].filter((one) => !allowed.has(one))).toEqual([])
      // One verb of every rule is used; the other verbs depend on what happens (patch: a repeated event).
      expect([...used]).toEqual(
        expect.arrayContaining([
          'watch /services',
          'watch discovery.k8s.io/endpointslices',
          'watch networking.k8s.io/servicecidrs',
          'watch /nodes',
          event,
        ]),
      )
    })

    it('has made no invalid request in all this', () => {
      expect(proxy.child.running).toBe(true)
      expect(proxy.child.output()).not.toMatch(/listener failed|TypeError|RangeError|panic|unhandled rejection/i)
    })

    /** A starting API server answers 403 to all clients until it has read the roles. */
    function starting({ requestReceivedTimestamp }: AuditRecord): boolean {
      const at = Date.parse(requestReceivedTimestamp)
      return fixture.cluster.starts.some(({ from, ready }) => from <= at && at <= ready)
    }
  })
}

function identity(token: string): string {
  return JSON.parse(Buffer.from(token.split('.')[1]!, 'base64url').toString()).jti
}

function action({ verb, objectRef }: AuditRecord): string {
  return `${verb} ${objectRef?.apiGroup ?? ''}/${objectRef?.resource}`
}

interface Rule {
  readonly apiGroups: readonly string[]
  readonly resources: readonly string[]
  readonly verbs: readonly string[]
}

/** Returns every `verb group/resource` of the ClusterRole. */
function allowances(): ReadonlySet<string> {
  const documents = parseAllDocuments(readFileSync(RBAC, 'utf8')).map((document) => document.toJS())
  const { rules } = documents.find((document) => document.kind === 'ClusterRole') as { rules: readonly Rule[] }
  const allowed = new Set<string>()
  for (const { apiGroups, resources, verbs } of rules)
    for (const group of apiGroups)
      for (const resource of resources) for (const verb of verbs) allowed.add(`${verb} ${group}/${resource}`)
  return allowed
}
