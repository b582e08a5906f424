// What the embedded API server answers in protobuf says the same as what it answers in JSON.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { decodeProtobuf } from '../../../src/apiserver/protobuf/decode-protobuf.ts'
import { encodeBody, encodeMessage } from '../../../src/apiserver/protobuf/encode-protobuf.ts'
import type { Json } from '../../../src/apiserver/schema/json.ts'
import { endpointSlice, event, newEvent, service as serviceSchema } from '../../../src/apiserver/schema/kinds.ts'
import type { ObjectSchema, Schema } from '../../../src/apiserver/schema/schema.ts'
import type { ApiServer } from '../../../src/apiserver/start.ts'
import { Client, defaultUserAgent } from '../../../src/kube/client.ts'
import { loadConnection } from '../../../src/kube/kubeconfig.ts'
import { protobufType } from '../../../src/kube/protobuf/read-body.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import { ask, folder, pod, pods, post, service, services, start } from '../test-server.ts'

/** Random values of the form that a schema describes. */
function randomValue(schema: Schema): fc.Arbitrary<unknown> {
  switch (schema.type) {
    case 'string':
      return fc.string({ minLength: 1, unit: 'grapheme' })
    case 'boolean':
      return fc.boolean()
    case 'integer':
      return fc.integer()
    case 'time':
      return fc.date({ min: new Date(1_000), max: new Date('2200-01-01'), noInvalidDate: true }).map(formatWholeSecond)
    case 'int-or-string':
      return fc.oneof(fc.integer(), fc.string())
    case 'list':
      return fc.array(randomValue(schema.of), { minLength: 1, maxLength: 3 })
    case 'map':
      return fc.dictionary(fc.stringMatching(/^[a-z]+$/), fc.string(), { minKeys: 1, maxKeys: 3 })
    case 'object':
      return objectOf(schema)
    default:
      return fc.constant({ 'f:spec': { 'f:ports': {} } })
  }
}

const formatWholeSecond = (date: Date): string => `${date.toISOString().slice(0, 19)}Z`

const objectOf = (schema: ObjectSchema): fc.Arbitrary<Json> =>
  fc.record(Object.fromEntries(Object.entries(schema.fields).map(([name, field]) => [name, randomValue(field)])), {
    requiredKeys: [],
  }) as fc.Arbitrary<Json>

describe('a message', () => {
  it.each([
    ['Service', serviceSchema],
    ['EndpointSlice', endpointSlice],
    ['Event', event],
    ['Event of events.k8s.io', newEvent],
  ])('of a %s is decoded to what was encoded', (_, schema) => {
    fc.assert(
      fc.property(objectOf(schema), (object) => {
        const { kind: __, apiVersion: ___, ...content } = object
        const body = encodeBody('Kind', 'v1', encodeMessage(content, schema))
        expect(decodeProtobuf(body, schema)).toEqual({ kind: 'Kind', apiVersion: 'v1', ...content })
      }),
      { numRuns: 100 },
    )
  })

  it('keeps the microseconds of a time', () => {
    const object = { eventTime: '2025-11-16T09:53:21.009001Z' }
    expect(decodeProtobuf(encodeBody('Event', 'v1', encodeMessage(object, newEvent)), newEvent)).toMatchObject(object)
  })
})

describe('the server', () => {
  let server: ApiServer
  let client: Client
  let place: ReturnType<typeof folder>
  beforeEach(async () => {
    server = await start()
    place = folder()
    const kubeconfig = join(place.path, 'kubeconfig')
    writeFileSync(kubeconfig, server.kubeconfig())
    const connection = loadConnection({ kubeconfig, master: '', env: {} })
    client = new Client(connection, {
      qps: 1000,
      burst: 1000,
      userAgent: defaultUserAgent,
      log: silentLogger,
      clock: systemClock,
      accept: `${protobufType},application/json`,
    })
  })
  afterEach(async () => {
    client.close()
    await server.close()
    place.remove()
  })

  it('answers in protobuf where it is asked to, with all fields of the JSON form', async () => {
    const metadata = { annotations: { note: 'größer' }, finalizers: ['example.com/keep'] }
    await post(server, services, service('web', { type: 'NodePort', externalIPs: ['192.0.2.7'] }, metadata))
    const path = `${services}/web`
    const { json } = await ask(server, { path })
    const { protobuf } = await client.request({ path, readsProtobuf: true })
    expect(decodeProtobuf(protobuf as Buffer, serviceSchema)).toEqual(JSON.parse(JSON.stringify(json)))
  })

  it('answers in JSON about kinds without field numbers, and refuses a client that reads protobuf only', async () => {
    await post(server, pods, pod('a', {}, '10.0.0.1'))
    const both = await ask(server, { path: pods, accept: `${protobufType}, application/json` })
    expect(both.json.items).toHaveLength(1)
    expect((await ask(server, { path: pods, accept: protobufType })).status).toBe(406)
  })
})
