// Numbered services and slices as records, for the benches that feed an engine directly; objects.ts makes them as JSON of an API server.

import type { ServiceRecord, SliceRecord } from '../src/model/types.ts'
import { endpoint, service, slice, tcp } from '../test/support/builders.ts'

export const endpointsEach = 5

const keyOf = (i: number): string => `ns-${i % 50}/service-${i}`

export const serviceAt = (i: number): ServiceRecord =>
  service({
    key: keyOf(i),
    uid: String(i),
    created: i,
    clusterIps: [`172.${16 + (i >> 16)}.${(i >> 8) & 255}.${i & 255}`],
    ports: [tcp(80, 'http')],
  })

/** Each `generation` has another address for the first endpoint; there can be 63 of them. */
export function sliceAt(i: number, generation = 0): SliceRecord {
  const endpoints = Array.from({ length: endpointsEach }, (_, n) => {
    const host = i * endpointsEach + n
    const second = (n === 0 ? generation : 0) * 4 + (host >> 16)
    return endpoint(`10.${second}.${(host >> 8) & 255}.${host & 255}`, 'there')
  })
  return slice(endpoints, { key: `${keyOf(i)}-a`, service: keyOf(i), name: 'http', port: 8080 })
}
