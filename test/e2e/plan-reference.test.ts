// Compares `sluice plan` with a real API server about random objects: what the server accepts and has applied is no change, and what it refuses
// is refused in its words. One user may write, so that plan asks the server by a dry run; the other may only read, so that plan decides itself.

import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse, stringify } from 'yaml'
import { directory, sluice } from '../commands/run-command.ts'
import { type RandomObject, randomService, randomSlice } from '../support/random-objects.ts'
import { findBinaries } from './binaries.ts'
import { type Cluster, startCluster } from './cluster.ts'
import { ask, type Body } from './compare-answers.ts'
import { list, node } from './kubectl-manifests.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
if ('missing' in found) process.stdout.write(`SKIPPED plan compared with a real API server: ${found.missing}\n`)

const readEverything = {
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'ClusterRole',
  metadata: { name: 'reader' },
  rules: [{ apiGroups: ['*'], resources: ['*'], verbs: ['get', 'list', 'watch'] }],
}
const forReaders = {
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'ClusterRoleBinding',
  metadata: { name: 'reader' },
  roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'reader' },
  subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'Group', name: 'readers' }],
}

/** A port or address that the server chose by chance, or that its message quotes. */
const withoutChance = (text: string): string =>
  text.replace(/\b3\d{4}\b/g, '*').replace(/\b10\.96\.\d+\.\d+\b/g, '10.96.*')

describe.skipIf('missing' in found)('plan, with a real API server', () => {
  let cluster: Cluster
  let token = ''
  beforeAll(async () => {
    cluster = await startCluster({ binaries: (found as { directory: string }).directory })
    token = parse(readFileSync(cluster.kubeconfig, 'utf8')).users[0].user.token as string
    const roles = [readEverything, forReaders].map((one) => JSON.stringify(one))
    await cluster.apply(list(node('a', ['192.0.2.1'], 'zone-1'), ...roles))
    await cluster.authority.issue('reader', '/O=readers/CN=rita')
  })
  afterAll(async () => {
    await cluster?.stop()
  })

  const pathOf = (kind: unknown): string =>
    kind === 'Service'
      ? '/api/v1/namespaces/default/services'
      : '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices'

  /** Creates the object as kubectl apply does. Returns what the server says against it; undefined if the object exists now. */
  async function tryToCreate(object: RandomObject): Promise<readonly string[] | undefined> {
    const { annotations, ...metadata } = object.metadata as Body
    const lastApplied = { 'kubectl.kubernetes.io/last-applied-configuration': JSON.stringify(object) }
    const body = { ...object, metadata: { ...metadata, annotations: { ...(annotations as Body), ...lastApplied } } }
    const path = `${pathOf(object.kind)}?fieldValidation=Strict`
    const { http, message, details } = await ask(cluster.port, token, { method: 'POST', path, body })
    if (http === 201) return undefined
    const { causes = [] } = (details ?? {}) as { causes?: readonly { message: string }[] }
    return causes.length === 0 ? [message as string] : causes.map((cause) => cause.message)
  }

  it.each([
    ['a user who may write', 'admin', 21],
    ['a user who may only read', 'reader', 22],
  ] as const)('agrees about random objects, for %s', async (_who, user, seed) => {
    const kubeconfig =
      user === 'admin' ? cluster.kubeconfig : cluster.writeKubeconfig('reader', { certificate: 'reader' })
    const numbers = { accepted: 0, refused: 0 }
    const objects = fc.sample<RandomObject>(fc.oneof(randomService, randomSlice), { seed, numRuns: 150 })
    for (const object of objects) {
      const refusal = await tryToCreate(object)
      const file = `${directory({ 'one.yaml': stringify(object) })}/one.yaml`
      const argv = ['plan', '-f', file, '--kubeconfig', kubeconfig, '--node', 'a', '--no-check', '-o', 'json']
      const { status, stdout, stderr } = await sluice(...argv)
      if (refusal === undefined) {
        expect([stderr, JSON.parse(stdout).changes, status], JSON.stringify(object)).toEqual(['', [], 0])
        numbers.accepted++
        const { name } = object.metadata as { name: string }
        await ask(cluster.port, token, { method: 'DELETE', path: `${pathOf(object.kind)}/${name}` })
      } else {
        expect([status, stdout], JSON.stringify(object)).toEqual([1, ''])
        for (const why of refusal) expect(withoutChance(stderr)).toContain(withoutChance(why))
        numbers.refused++
      }
    }
    expect(Math.min(numbers.accepted, numbers.refused)).toBeGreaterThan(20)
  })
})
