// Sends random Services and EndpointSlices to the embedded API server and to a real one: both refuse them in the same words, or complete
// them to the same objects. `sluice plan` lets the embedded server decide.

import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { type ApiServer, startApiServer } from '../../src/apiserver/start.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { randomService, randomSlice } from '../support/random-objects.ts'
import { findBinaries } from './binaries.ts'
import { type Cluster, startCluster } from './cluster.ts'
import { ask, type Body, type Question } from './compare-answers.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
if ('missing' in found) process.stdout.write(`SKIPPED admission compared with a real API server: ${found.missing}\n`)

const seed = 13
const services = '/api/v1/namespaces/default/services'
const slices = '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices'

/** Two servers may find the same faults in another order; the real one checks the metadata of a changed object several times. */
function comparable({ message, details, http, reason, metadata: _, endpoints, ...rest }: Body): Body {
  const { causes = [] } = (details ?? {}) as { causes?: { field?: string; message: string }[] }
  // The real server prints null for an empty list.
  const object = { ...rest, ...(Array.isArray(endpoints) && endpoints.length > 0 ? { endpoints } : {}) }
  if (causes.length === 0) return { http, reason, message, ...(http === 201 ? { object } : {}) }
  return {
    http,
    reason,
    causes: [...new Set(causes.map(({ field = '', message: why }) => `${field}: ${hidePort(why)}`))].sort(),
  }
}

/** A port that the server chose by chance. */
const hidePort = (message: string): string => message.replace(/^(Duplicate value: )3\d{4}$/, '$1*')

describe.skipIf('missing' in found)('admission of random objects', () => {
  let cluster: Cluster
  let server: ApiServer
  beforeAll(async () => {
    cluster = await startCluster({ binaries: (found as { directory: string }).directory })
    server = await startApiServer({ log: silentLogger, serviceCidrs: ['10.96.0.0/16', 'fd00:96::/112'] })
  })
  afterAll(async () => {
    await server?.close()
    await cluster?.stop()
  })

  const answer = async (question: Question): Promise<{ real: Body; own: Body }> => {
    const token = parse(readFileSync(cluster.kubeconfig, 'utf8')).users[0].user.token as string
    return {
      real: comparable(await ask(cluster.port, token, question)),
      own: comparable(await ask(server.port, server.token, question)),
    }
  }

  it.each([
    ['Services', services, randomService, 300],
    ['EndpointSlices', slices, randomSlice, 200],
  ] as const)('agrees about new %s', async (_, path, arbitrary, count) => {
    const numbers = { accepted: 0, refused: 0 }
    for (const body of fc.sample<Body>(arbitrary, { seed, numRuns: count })) {
      const { real, own } = await answer({ method: 'POST', path: `${path}?fieldValidation=Strict`, body })
      expect(own, JSON.stringify(body)).toEqual(real)
      numbers[real.http === 201 ? 'accepted' : 'refused']++
      if (real.http === 201) await answer({ method: 'DELETE', path: `${path}/${nameOf(body)}` })
    }
    expect(numbers.accepted).toBeGreaterThan(count / 10)
    expect(numbers.refused).toBeGreaterThan(count / 10)
  })

  it('agrees about changed Services', async () => {
    const numbers = { accepted: 0, refused: 0 }
    const objects = fc.sample<Body>(randomService, { seed: seed + 1, numRuns: 300 })
    for (const body of objects) {
      const name = { metadata: { ...(body.metadata as Body), name: 'changed' } }
      const put = { method: 'PUT', path: `${services}/changed`, body: { ...body, ...name } }
      const { real, own } = await answer(put)
      expect(own, JSON.stringify(body)).toEqual(real)
      numbers[Number(real.http) < 300 ? 'accepted' : 'refused']++
    }
    expect(numbers.accepted).toBeGreaterThan(20)
  })
})

const nameOf = ({ metadata }: Body): unknown => (metadata as Body).name
