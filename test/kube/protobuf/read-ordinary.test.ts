// Compares objects that are read straight into their records with the same objects as the tables and decoders read them.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { service as serviceAt, slice as sliceAt } from '../../../bench/api-objects.ts'
import { encodeMessage } from '../../../src/apiserver/protobuf/encode-protobuf.ts'
import { service as serviceSchema, endpointSlice as sliceSchema } from '../../../src/apiserver/schema/kinds.ts'
import type { ObjectSchema } from '../../../src/apiserver/schema/schema.ts'
import { asObject, type DecodedRecord, type JsonObject } from '../../../src/kube/decode/fields.ts'
import { readMessage, UnreadBytes } from '../../../src/kube/protobuf/read-message.ts'
import { readOrigin } from '../../../src/kube/reflect/object-origin.ts'
import { endpointSlices, services, type WatchedResource } from '../../../src/kube/reflect/watched-resources.ts'
import { anyService, anySlice, asJson } from '../../support/arbitrary-objects.ts'

interface Kind {
  readonly schema: ObjectSchema
  readonly resource: WatchedResource<unknown>
  readonly arbitrary: fc.Arbitrary<object>
}

type Fields = Readonly<Record<string, unknown>>
type Parts = Readonly<Record<string, Fields>>

/** Ordinary services, some fields of which are those of others that are not. */
const nearlyOrdinaryService = fc
  .tuple(fc.nat(99), anyService as fc.Arbitrary<Parts>, fc.subarray(['type', 'ports', 'clusterIP', 'ipFamilies', 'x']))
  .map(([i, { metadata, spec, status }, taken]) => {
    const ordinary = asJson(serviceAt(i)) as Parts
    const fields = taken.flatMap((name) => (spec?.[name] === undefined ? [] : [[name, spec[name]]]))
    return taken.includes('x')
      ? { ...ordinary, metadata, status, spec: { ...ordinary.spec, ...Object.fromEntries(fields) } }
      : { ...ordinary, spec: { ...ordinary.spec, ...Object.fromEntries(fields) } }
  })

/** Slices with valid addresses, everything else of which may not be ordinary. */
const nearlyOrdinarySlice = fc.tuple(anySlice as fc.Arbitrary<Fields>, fc.boolean()).map(([slice, isForeign]) => {
  const { metadata } = asJson(sliceAt(1, 1, 0))
  const endpoints = ((slice.endpoints ?? []) as readonly Fields[]).map((endpoint, i) => ({
    ...endpoint,
    addresses: [`10.1.0.${i}`],
  }))
  return { ...slice, addressType: 'IPv4', ...(isForeign ? {} : { metadata }), endpoints }
})

const kinds: readonly [string, Kind][] = [
  ['Service', { schema: serviceSchema, resource: services, arbitrary: fc.oneof(anyService, nearlyOrdinaryService) }],
  [
    'EndpointSlice',
    { schema: sliceSchema, resource: endpointSlices, arbitrary: fc.oneof(anySlice, nearlyOrdinarySlice) },
  ],
]

const identityOf = (object: JsonObject): unknown => {
  const { name, namespace, uid = '', resourceVersion = '' } = asObject(object.metadata) ?? {}
  return { name, namespace, uid, resourceVersion, origin: readOrigin(object, false) }
}

interface Result {
  readonly decoded?: DecodedRecord<unknown>
  readonly identity?: unknown
}

/** As the table and the decoder read it; empty if it cannot be read. */
function readByTable(raw: UnreadBytes, { protobuf, decode }: WatchedResource<unknown>): Result {
  try {
    const object = readMessage(raw, protobuf)
    return { decoded: decode(object), identity: identityOf(object) }
  } catch (error) {
    expect(error).toBeInstanceOf(SyntaxError)
    return {}
  }
}

/** Undefined if the object is not ordinary; empty if it cannot be read. */
function readStraight(raw: UnreadBytes, { protobuf }: WatchedResource<unknown>): Result | undefined {
  try {
    const object = protobuf.readOrdinary?.(raw)
    return object === undefined ? undefined : { decoded: object.decoded, identity: identityOf(object) }
  } catch (error) {
    expect(error).toBeInstanceOf(SyntaxError)
    return {}
  }
}

const encode = (object: object, schema: ObjectSchema): Buffer => encodeMessage(asJson(object), schema)

describe('objects that are read straight into their records', () => {
  it.each(kinds)('are equal to what the table gives: %s', (_, { arbitrary, schema, resource }) => {
    let straight = 0
    fc.assert(
      fc.property(arbitrary, (object) => {
        const raw = new UnreadBytes(encode(object, schema))
        const result = readStraight(raw, resource)
        if (result === undefined) return
        straight++
        expect(result).toEqual(readByTable(raw, resource))
        expect(result.decoded?.problems).toEqual([])
      }),
      { numRuns: 2000 },
    )
    expect(straight).toBeGreaterThan(50)
  })

  it.each(kinds)('are equal to it in bytes that were changed or cut off: %s', (kind, { schema, resource }) => {
    const ordinary = fc.nat(99).map((i) => (kind === 'Service' ? serviceAt(i) : sliceAt(i, i % 4, 0)))
    // Small bytes are tags and lengths.
    const change = fc.tuple(fc.nat(), fc.oneof(fc.nat({ max: 40 }), fc.nat({ max: 255 })))
    let straight = 0
    fc.assert(
      fc.property(ordinary, fc.array(change, { maxLength: 2 }), fc.option(fc.nat()), (object, changes, cut) => {
        const bytes = encode(object, schema)
        for (const [at, value] of changes) bytes[at % bytes.length] = value
        const raw = new UnreadBytes(bytes, 0, cut === null ? bytes.length : cut % (bytes.length + 1))
        const result = readStraight(raw, resource)
        if (result === undefined) return
        straight++
        expect(result).toEqual(readByTable(raw, resource))
      }),
      { numRuns: 4000 },
    )
    expect(straight).toBeGreaterThan(400)
  })

  const metadata = { name: 'web', namespace: 'shop', uid: 'u', resourceVersion: '7' }
  const service = (spec: object, more: object = {}, status: object = { loadBalancer: {} }) => ({
    metadata: { ...metadata, creationTimestamp: '2026-11-16T03:12:00Z', ...more },
    spec: { clusterIP: '10.96.0.1', ports: [{ name: 'http', protocol: 'TCP', port: 80 }], ...spec },
    status,
  })
  const slice = (endpoint: object, more: object = {}, ports: readonly object[] = [{ name: '', port: 80 }]) => ({
    metadata: { ...metadata, labels: { 'kubernetes.io/service-name': 'web', ...more } },
    addressType: 'IPv4',
    ports,
    endpoints: [{ addresses: ['10.1.0.1'], ...endpoint }],
  })
  const straight = (object: object, isService: boolean): boolean => {
    const [, { schema, resource }] = kinds[isService ? 0 : 1] as (typeof kinds)[number]
    const raw = new UnreadBytes(encode(object, schema))
    const result = readStraight(raw, resource)
    if (result !== undefined) expect(result).toEqual(readByTable(raw, resource))
    return result !== undefined
  }

  it.each<[string, object]>([
    ['of a scripted API server', serviceAt(1)],
    ['with a cluster IP alone', service({})],
    ['of two families', service({ clusterIPs: ['10.96.0.1', 'fd00::1'], ipFamilies: ['IPv4', 'IPv6'] })],
    ['with a node port', service({ type: 'NodePort', ports: [{ port: 80, nodePort: 30_080 }] })],
    [
      'with two ports',
      service({
        ports: [
          { name: 'dns', port: 53, protocol: 'UDP' },
          { name: 'dns-tcp', port: 53 },
        ],
      }),
    ],
    ['with policies', service({ internalTrafficPolicy: 'Local', externalTrafficPolicy: 'Local', type: 'NodePort' })],
    ['with labels and annotations of others', service({}, { labels: { app: 'web' }, annotations: { note: 'x' } })],
  ])('include services %s', (_, object) => {
    expect(straight(object, true)).toBe(true)
  })

  it.each<[string, object]>([
    ['headless ones', service({ clusterIP: 'None' })],
    ['an external IP', service({ externalIPs: ['192.0.2.1'] })],
    ['an address of a load balancer', service({}, {}, { loadBalancer: { ingress: [{ ip: '192.0.2.1' }] } })],
    ['affinity', service({ sessionAffinity: 'ClientIP' })],
    ['an annotation of ours', service({}, { annotations: { 'sluice/algorithm': 'random' } })],
    ['the label of another proxy', service({}, { labels: { 'service.kubernetes.io/service-proxy-name': 'x' } })],
    ['an invalid address', service({ clusterIP: '10.96.0.x' })],
    ['a wrong family', service({ clusterIPs: ['10.96.0.1'], ipFamilies: ['IPv6'] })],
    ['two ports of one name', service({ ports: [{ port: 80 }, { port: 81 }] })],
    ['an invalid port', service({ ports: [{ port: 0 }] })],
  ])('leave services to the table that have %s', (_, object) => {
    expect(straight(object, true)).toBe(false)
  })

  it.each<[string, object]>([
    ['of a scripted API server', sliceAt(1, 5, 0)],
    ['without endpoints', { ...slice({}), endpoints: [] }],
    ['with conditions', slice({ conditions: { ready: false, serving: true, terminating: true }, nodeName: 'a' })],
    ['with hints', slice({ hints: { forZones: [{ name: 'a' }, { name: 'b' }], forNodes: [{ name: 'n' }] } })],
    ['of IPv6', { ...slice({ addresses: ['fd00::1'] }), addressType: 'IPv6' }],
    [
      'with several ports',
      slice({}, {}, [
        { name: 'a', port: 1, protocol: 'UDP' },
        { name: 'b', port: 2 },
      ]),
    ],
  ])('include slices %s', (_, object) => {
    expect(straight(object, false)).toBe(true)
  })

  it.each<[string, object]>([
    ['names instead of addresses', { ...slice({}), addressType: 'FQDN' }],
    ['an address of another family', slice({ addresses: ['fd00::1'] })],
    ['no address', slice({ addresses: [] })],
    ['the label of headless services', slice({}, { 'service.kubernetes.io/headless': '' })],
    ['no service', { ...slice({}), metadata }],
    ['a port without a name', slice({}, {}, [{ port: 80 }])],
    ['a weight', { ...slice({}), metadata: { ...slice({}).metadata, annotations: { 'sluice/weight': '2' } } }],
  ])('leave slices to the table that have %s', (_, object) => {
    expect(straight(object, false)).toBe(false)
  })
})
