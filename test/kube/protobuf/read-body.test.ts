import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  encodeBody,
  encodeList,
  encodeMessage,
  encodeWatchFrame,
} from '../../../src/apiserver/protobuf/encode-protobuf.ts'
import {
  serviceCidr as cidrSchema,
  service as serviceSchema,
  endpointSlice as sliceSchema,
} from '../../../src/apiserver/schema/kinds.ts'
import type { ObjectSchema } from '../../../src/apiserver/schema/schema.ts'
import { decodeEndpointSlice } from '../../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeServiceCidr } from '../../../src/kube/decode/decode-node.ts'
import { decodeService } from '../../../src/kube/decode/decode-service.ts'
import { endpointSlice, service, serviceCidr } from '../../../src/kube/protobuf/message-tables.ts'
import { readList, readStatus, readWatchEvent, readWatchEventInSteps } from '../../../src/kube/protobuf/read-body.ts'
import { type MessageTable, readMessage, UnreadBytes } from '../../../src/kube/protobuf/read-message.ts'
import { ChangeFilter } from '../../../src/kube/reflect/change-filter.ts'
import {
  identifyEvent,
  isSnapshotEnd,
  parseEvent,
  parseEventInSteps,
  parseProtobufPage,
} from '../../../src/kube/reflect/watch-messages.ts'
import { services } from '../../../src/kube/reflect/watched-resources.ts'
import { encodeDelimited, encodeNumber } from '../../../src/lib/protobuf-writer.ts'
import { runAtOnce } from '../../../src/lib/yielding.ts'
import type { Problem, ServiceRecord } from '../../../src/model/types.ts'
import { anyCidr, anyService, anySlice, asJson } from '../../support/arbitrary-objects.ts'

/** An event without the length before it. */
const encodeWatchEvent = (type: string, body: Buffer): Buffer => encodeWatchFrame(type, body).subarray(4)

const kinds: readonly [string, fc.Arbitrary<object>, ObjectSchema, MessageTable, (json: unknown) => unknown][] = [
  ['Service', anyService, serviceSchema, service, decodeService],
  ['EndpointSlice', anySlice, sliceSchema, endpointSlice, decodeEndpointSlice],
  ['ServiceCIDR', anyCidr, cidrSchema, serviceCidr, decodeServiceCidr],
]

describe('protobuf bodies', () => {
  it.each(kinds)('give the same record of a %s as JSON does', (...[, arbitrary, schema, table, decode]) => {
    fc.assert(
      fc.property(arbitrary, (object) => {
        const json = asJson(object)
        expect(decode(readMessage(new UnreadBytes(encodeMessage(json, schema)), table))).toEqual(decode(json))
      }),
      { numRuns: 1000 },
    )
  })

  it.each(kinds)(
    'that are cut off, changed or random never do more than cost one %s',
    (_, arbitrary, schema, table) => {
      const change = fc.tuple(fc.nat(), fc.nat({ max: 255 }))
      fc.assert(
        fc.property(arbitrary, fc.array(change, { maxLength: 4 }), fc.nat(), (object, changes, cut) => {
          const body = encodeBody('Kind', 'v1', encodeMessage(asJson(object), schema))
          for (const [at, value] of changes) body[at % body.length] = value
          const bytes = body.subarray(0, cut % (body.length + 1))
          for (const read of [
            () => readWatchEvent(bytes, table),
            () => readList(bytes, table),
            () => readMessage(new UnreadBytes(bytes), table),
          ]) {
            try {
              read()
            } catch (error) {
              expect(error).toBeInstanceOf(SyntaxError)
            }
          }
          readStatus(bytes)
        }),
        { numRuns: 1000 },
      )
    },
  )

  it.each(kinds)('of a %s are the same when they are read in steps', (kind, arbitrary, schema, table) => {
    const long = { ports: Array.from({ length: 250 }, (_, i) => ({ name: `p${i}`, port: i + 1 })) }
    fc.assert(
      fc.property(arbitrary, fc.option(fc.nat()), (object, cut) => {
        const json = asJson({ ...object, ...(kind === 'EndpointSlice' && long) })
        const message = encodeMessage(json, schema)
        const end = cut === null ? message.length : cut % (message.length + 1)
        const frame = encodeWatchEvent('ADDED', encodeBody('Kind', 'v1', message.subarray(0, end)))
        expect(runAtOnce(readWatchEventInSteps(frame, table))).toEqual(readWatchEvent(frame, table))
        expect(runAtOnce(parseEventInSteps(frame, table))).toEqual(parseEvent(frame, table))
        if (cut !== null) return
        const { namespace, name, resourceVersion: version = '' } = json.metadata as Record<string, string>
        expect(identifyEvent(frame)).toEqual({ namespace, name, version })
      }),
      { numRuns: 200 },
    )
  })

  it('reveal their object only for changes, and only in the form of the API server', () => {
    const metadata = { name: 'a', namespace: 'b', resourceVersion: '7' }
    const body = encodeBody('Service', 'v1', encodeMessage({ metadata }, serviceSchema))
    expect(identifyEvent(encodeWatchEvent('DELETED', body))).toEqual({ name: 'a', namespace: 'b', version: '7' })
    expect(identifyEvent(encodeWatchEvent('BOOKMARK', body))).toBeUndefined()
    expect(identifyEvent(Buffer.from('nonsense'))).toBeUndefined()
    const line = (type: string, order: object) =>
      JSON.stringify({ type, object: { kind: 'Service', apiVersion: 'v1', metadata: order } })
    expect(identifyEvent(line('MODIFIED', metadata))).toEqual({ name: 'a', namespace: 'b', version: '7' })
    expect(identifyEvent(line('ADDED', { namespace: 'b', name: 'a', resourceVersion: '7' }))).toBeUndefined()
    expect(identifyEvent(line('ERROR', metadata))).toBeUndefined()
  })

  it('are events of a watch', () => {
    const object = { metadata: { name: 'a', namespace: 'b', resourceVersion: '7' }, spec: { clusterIP: '10.0.0.1' } }
    const frame = encodeWatchEvent('ADDED', encodeBody('Service', 'v1', encodeMessage(object, serviceSchema)))
    expect(parseEvent(frame, service)).toEqual({ type: 'ADDED', object, version: '7' })
    const end = { metadata: { resourceVersion: '9', annotations: { 'k8s.io/initial-events-end': 'true' } } }
    const bookmark = encodeWatchEvent('BOOKMARK', encodeBody('Service', 'v1', encodeMessage(end, serviceSchema)))
    expect(isSnapshotEnd(parseEvent(bookmark, service).object)).toBe(true)
    expect(() => parseEvent(Buffer.from('nonsense'), service)).toThrow('invalid watch event')
  })

  it('are errors of a watch, and of refused requests', () => {
    const details = Buffer.concat([
      encodeDelimited(4, encodeDelimited(1, 'ResourceVersionTooLarge')),
      encodeNumber(5, 3),
    ])
    const raw = Buffer.concat([
      encodeDelimited(2, 'Failure'),
      encodeDelimited(3, 'too old'),
      encodeDelimited(4, 'Expired'),
      encodeDelimited(5, details),
      encodeNumber(6, 410),
    ])
    const body = encodeBody('Status', 'v1', raw)
    const status = {
      status: 'Failure',
      message: 'too old',
      reason: 'Expired',
      details: { causes: [{ reason: 'ResourceVersionTooLarge' }], retryAfterSeconds: 3 },
      code: 410,
    }
    expect(readStatus(body)).toEqual(status)
    expect(parseEvent(encodeWatchEvent('ERROR', body), service).object).toEqual(status)
    expect(readStatus(Buffer.from('<html>'))).toBe('<html>')
  })

  it('are pages of a list, in which an object that cannot be read costs itself only and keeps what it had', () => {
    const make = (name: string, version: string) =>
      encodeMessage(
        { metadata: { name, namespace: 'b', uid: 'u', resourceVersion: version }, spec: { clusterIP: '10.0.0.1' } },
        serviceSchema,
      )
    const puts: string[] = []
    const problems: Problem[] = []
    const filter = new ChangeFilter<ServiceRecord>(services, {
      put: (key) => puts.push(key),
      drop: (key) => puts.push(`drop ${key}`),
      synced: () => {},
      problem: (problem) => problems.push(problem),
    })
    const deliver = (items: readonly Buffer[]) => {
      const page = parseProtobufPage(
        encodeBody('ServiceList', 'v1', encodeList({ resourceVersion: '9', continue: 'more' }, items)),
        service,
      )
      expect([page.version, page.next]).toEqual(['9', 'more'])
      filter.beginSnapshot()
      for (const item of page.items) filter.put(item)
      for (const _ of filter.commitSnapshot());
    }
    deliver([make('one', '1'), make('two', '2')])
    expect(puts.splice(0)).toEqual(['b/one', 'b/two'])
    const broken = Buffer.concat([make('two', '3'), Buffer.from([0xff])])
    deliver([make('one', '4'), broken])
    expect(puts).toEqual(['b/one'])
    expect(problems).toMatchObject([{ object: 'b/two', uid: 'u', message: expect.stringContaining('cut off') }])
  })
})
