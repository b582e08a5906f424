// Checks when changes of default/kubernetes reach the store: not while they would cut our client off from the API server.

import { expect, it } from 'vitest'
import { KeptApiService } from '../../../src/daemon/resilience/kept-api-service.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import type { ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, service, slice } from '../../support/builders.ts'

const key = 'default/kubernetes'
const kubernetes = (clusterIp = '10.96.0.1') => service({ key, clusterIps: [clusterIp] })
const servers = (...ips: string[]) =>
  slice(
    ips.map((ip) => endpoint(ip)),
    { key: `${key}-1`, service: key, port: 6443 },
  )
const unready = slice([endpoint('192.0.2.9', '', 'unready')], { key: `${key}-1`, service: key, port: 6443 })

/** What the store has, as short texts, while the client dials the address. */
function open(dialed = '10.96.0.1') {
  const services = new Map<string, ServiceRecord>()
  const slices = new Map<string, SliceRecord>()
  const storeIn = <R>(map: Map<string, R>) => ({
    put: (name: string, record: R) => void map.set(name, record),
    drop: (name: string) => void map.delete(name),
    synced: () => undefined,
    problem: () => undefined,
  })
  const kept = new KeptApiService({
    services: storeIn(services),
    slices: storeIn(slices),
    isDialed: (ip) => ip === dialed,
    log: silentLogger,
  })
  const texts = () => [
    ...[...services.values()].flatMap((one) => one.clusterIps),
    ...[...slices.values()].flatMap(({ endpoints }) => Array.from(endpoints, ({ ip }) => ip)),
  ]
  return { services: kept.services, slices: kept.slices, texts, stored: { services, slices } }
}

it.each([
  ['its slice is deleted', ({ slices }: ReturnType<typeof open>) => slices.drop(`${key}-1`)],
  ['its slice has no endpoints', ({ slices }: ReturnType<typeof open>) => slices.put(`${key}-1`, servers())],
  ['its endpoints are not ready', ({ slices }: ReturnType<typeof open>) => slices.put(`${key}-1`, unready)],
  ['the service is deleted', ({ services }: ReturnType<typeof open>) => services.drop(key)],
])('default/kubernetes stays as it was when %s, until it has endpoints again', (_, change) => {
  const one = open()
  one.services.put(key, kubernetes())
  one.slices.put(`${key}-1`, servers('192.0.2.9'))
  expect(one.texts()).toEqual(['10.96.0.1', '192.0.2.9'])
  change(one)
  expect(one.texts()).toEqual(['10.96.0.1', '192.0.2.9'])
  one.services.drop(key)
  one.slices.drop(`${key}-1`)
  expect(one.texts()).toEqual(['10.96.0.1', '192.0.2.9'])
  one.services.put(key, kubernetes('10.96.0.2'))
  one.slices.put(`${key}-2`, { ...servers('192.0.2.10'), key: `${key}-2` })
  expect(one.texts()).toEqual(['10.96.0.2', '192.0.2.10'])
  expect([...one.stored.slices.keys()]).toEqual([`${key}-2`])
})

it('a client that reaches the API server otherwise keeps nothing', () => {
  const one = open('192.0.2.9')
  one.services.put(key, kubernetes())
  one.slices.put(`${key}-1`, servers('192.0.2.9'))
  one.slices.put(`${key}-1`, servers())
  expect(one.texts()).toEqual(['10.96.0.1'])
  one.services.drop(key)
  expect(one.texts()).toEqual([])
  one.slices.drop(`${key}-1`)
  expect(one.stored.slices.size).toBe(0)
})

it('other services pass, and a slice that changes to another service', () => {
  const one = open()
  one.services.put(key, kubernetes())
  one.slices.put(`${key}-1`, servers('192.0.2.9'))
  one.services.put('ns/a', service({ key: 'ns/a', clusterIps: ['10.96.0.7'] }))
  one.slices.put('ns/a-1', slice([endpoint('10.0.0.1')], { key: 'ns/a-1', service: 'ns/a' }))
  expect(one.texts()).toEqual(['10.96.0.1', '10.96.0.7', '192.0.2.9', '10.0.0.1'])
  one.slices.put(`${key}-1`, slice([endpoint('10.0.0.2')], { key: `${key}-1`, service: 'ns/a' }))
  expect(one.texts()).toContain('10.0.0.2')
  one.services.drop('ns/a')
  one.slices.drop('ns/a-1')
  one.slices.drop(`${key}-1`)
  expect(one.stored.slices.size).toBe(0)
})
