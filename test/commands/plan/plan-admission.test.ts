// Tests that `sluice plan` answers as the API server does, from all three sources: for what was applied, and for what is refused.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { stringify } from 'yaml'
import { ApiError } from '../../../src/lib/errors.ts'
import { type RandomObject, randomService, randomSlice } from '../../support/random-objects.ts'
import { allSources, startSources } from './plan-sources.ts'

/** The port of the slice has no name: the API server sets ''. */
const newone = `apiVersion: v1
kind: Service
metadata: {name: newone}
spec:
  type: NodePort
  clusterIP: 10.96.0.55
  ports: [{port: 80, targetPort: 8080, nodePort: 30333}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: newone-1
  labels: {kubernetes.io/service-name: newone}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.32.0.3]}, {addresses: [10.32.1.3]}]
`
/** One of two ports has no name. */
const unnamed = `apiVersion: v1
kind: Service
metadata:
  name: hello
spec:
  ports:
    - port: 80
    - name: two
      port: 81
`

describe.each(allSources)('from %s', (source) => {
  it('foretells no change after a file was applied', async () => {
    const { apply, plan } = await startSources()
    await apply(newone)
    const { status, stdout } = await plan(source, { 'good2.yaml': newone })
    expect(stdout).toContain('No change.')
    expect(stdout).not.toContain('!')
    expect(status).toBe(0)
  })

  it('refuses what the API server refuses, in its words, with file, line and field', async () => {
    const { plan } = await startSources()
    const { status, stdout, stderr } = await plan(source, { 'two.yaml': unnamed })
    expect(stderr).toMatch(/two\.yaml:7: Service "hello" is invalid: spec\.ports\[0\]\.name: Required value\n$/)
    expect([status, stdout]).toEqual([1, ''])
  })

  it('names file and line of unknown fields, of types that do not fit, and of missing names', async () => {
    const { plan } = await startSources()
    const unknown = await plan(source, { 'a.yaml': unnamed.replace('spec:', 'spec:\n  nonsense: 1') })
    expect(unknown.stderr).toMatch(/a\.yaml:6: spec\.nonsense: .*strict decoding error: unknown field "spec\.nonsense"/)
    const typed = await plan(source, { 'b.yaml': unnamed.replace('port: 81', 'port: "81"') })
    expect(typed.stderr).toMatch(/b\.yaml:9: spec\.ports\[1\]\.port: .*cannot unmarshal string/)
    const nameless = await plan(source, { 'c.yaml': newone.replace('{name: newone}', '{}') })
    expect(nameless.stderr).toMatch(/c\.yaml:3: metadata\.name: Required value/)
  })

  it('refuses two services of one change that want one node port', async () => {
    const { plan } = await startSources()
    const other = newone.replace('name: newone}', 'name: other}').replace('10.96.0.55', '10.96.0.56')
    const { status, stderr } = await plan(source, { 'a.yaml': newone, 'b.yaml': other.split('---\n')[0] as string })
    expect(stderr).toMatch(/b\.yaml:7: Service "other" is invalid: spec\.ports\[0\]\.nodePort: .*already allocated/)
    expect(status).toBe(1)
  })
})

describe('a change of a cluster', () => {
  const sources = ['running proxy', 'kubeconfig'] as const

  it.each(sources)('keeps the fields that others set, from %s', async (source) => {
    const { apply, plan, server } = await startSources()
    await apply(newone)
    const path = '/api/v1/namespaces/default/services/newone'
    const contentType = 'application/merge-patch+json'
    await server.client.request({
      method: 'PATCH',
      path,
      contentType,
      body: { spec: { externalIPs: ['192.0.2.7'], sessionAffinity: 'ClientIP' } },
    })
    expect(await plan(source, { 'good2.yaml': newone })).toMatchObject({ status: 0 })
    const dropped = newone.replace(', nodePort: 30333', '').replace('type: NodePort', 'type: ClusterIP')
    const { stdout } = await plan(source, { 'good2.yaml': dropped })
    expect(stdout).toMatch(/- .*30333/)
    expect(stdout).not.toMatch(/- .*192\.0\.2\.7/)
  })

  it.each(sources)('may create its namespace, and refuses one that is missing, from %s', async (source) => {
    const { plan } = await startSources()
    const web = newone.replace('{name: newone}', '{name: newone, namespace: shop}').split('---\n')[0] as string
    const missing = await plan(source, { 'web.yaml': web })
    expect(missing).toMatchObject({ status: 1, stderr: expect.stringContaining('namespaces "shop" not found') })
    const shop = 'apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n'
    expect(await plan(source, { 'web.yaml': web, 'shop.yaml': shop })).toMatchObject({ status: 2 })
  })

  it.each(sources)(
    'agrees with the API server about random objects, from %s',
    async (source) => {
      const sources = await startSources()
      const numbers = { accepted: 0, refused: 0 }
      const both = fc.oneof(randomService, randomSlice)
      for (const [i, object] of fc.sample<RandomObject>(both, { seed: 5, numRuns: 50 }).entries()) {
        const refusal = await tryToCreate(sources, object)
        const { status, stdout, stderr } = await sources.plan(
          source,
          { [`${i}.yaml`]: stringify(object) },
          '-o',
          'json',
        )
        if (refusal === undefined) {
          expect([stderr, JSON.parse(stdout).changes, status], JSON.stringify(object)).toEqual(['', [], 0])
          numbers.accepted++
        } else {
          expect(status, stdout).toBe(1)
          for (const why of refusal) expect(stderr).toContain(why)
          numbers.refused++
        }
        await remove(sources, object)
      }
      expect(Math.min(numbers.accepted, numbers.refused)).toBeGreaterThan(10)
    },
    120_000,
  )
})

type Sources = Awaited<ReturnType<typeof startSources>>

/** Returns what the API server says against the object; undefined if the object exists now. */
async function tryToCreate({ apply }: Sources, object: RandomObject): Promise<readonly string[] | undefined> {
  try {
    await apply(stringify(object))
    return undefined
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    const { explanation = '', causes = [] } = error.answer
    return causes.length === 0 ? [explanation] : causes.map((cause) => (cause as { message: string }).message)
  }
}

async function remove({ server }: Sources, { kind, metadata }: RandomObject): Promise<void> {
  const { name } = metadata as { name: string }
  const group = kind === 'Service' ? '/api/v1' : '/apis/discovery.k8s.io/v1'
  const plural = kind === 'Service' ? 'services' : 'endpointslices'
  const path = `${group}/namespaces/default/${plural}/${name}`
  await server.client.request({ method: 'DELETE', path }).catch(() => {})
}
