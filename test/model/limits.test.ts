// Checks what counts against the limits of a service, and how an exceeded limit is named.

import { describe, expect, it } from 'vitest'
import { defaultSluiceConfig } from '../../src/config/sluice-config.ts'
import { describeExceeded, findExceeded, measureService } from '../../src/model/limits.ts'
import type { ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import { endpoint, service, slice, tcp } from '../support/builders.ts'

const { limits } = defaultSluiceConfig()
const list = <T>(length: number, make: (i: number) => T): T[] => Array.from({ length }, (_, i) => make(i))
const ips = (length: number) => list(length, (i) => `20.${i >> 16}.${(i >> 8) & 255}.${i & 255}`)
const ports = (length: number) => list(length, (i) => tcp(i + 1, `p${i}`))
const ofEndpoints = (length: number, given: Partial<SliceRecord> = {}) =>
  slice(
    ips(length).map((ip) => endpoint(ip)),
    given,
  )
const exceeded = (given: Partial<ServiceRecord>, slices: readonly SliceRecord[] = []) =>
  findExceeded(measureService(service(given), slices, 4), limits)

describe('limits of a service', () => {
  it.each<[string, Partial<ServiceRecord>, readonly SliceRecord[]]>([
    ['1,000 external IPs', { externalIps: ips(1_000) }, []],
    [
      '250 source ranges on two ports and two addresses',
      { ports: ports(2), loadBalancerIps: ips(2), sourceRanges: ips(250) },
      [],
    ],
    ['1,000 ports with node ports', { ports: ports(1_000).map((port) => ({ ...port, nodePort: port.port })) }, []],
    ['100 slices of 100 endpoints', { loadBalancerIps: ips(1) }, list(100, () => ofEndpoints(100))],
    ['10 slices of 1,000 endpoints with two ports', {}, list(10, () => ofEndpoints(1_000, { ports: ports(2) }))],
    ['addresses of the other family', { externalIps: list(5_000, (i) => `fd00::${i.toString(16)}`) }, []],
    ['source ranges without a load balancer IP', { sourceRanges: ips(30_000) }, []],
  ])('allow %s', (_, given, slices) => {
    expect(exceeded(given, slices)).toBeUndefined()
  })

  it.each<[string, Partial<ServiceRecord>, readonly SliceRecord[], [string, number]]>([
    ['100,000 external IPs', { externalIps: ips(100_000) }, [], ['addressesPerService', 100_000]],
    [
      '300 ports with 1,000 external IPs',
      { ports: ports(300), externalIps: ips(1_000) },
      [],
      ['frontendsPerService', 300_600],
    ],
    ['20,000 ports', { ports: ports(20_000) }, [], ['portsPerService', 20_000]],
    [
      '30,000 source ranges',
      { loadBalancerIps: ips(1), sourceRanges: ips(30_000) },
      [],
      ['sourceRangesPerService', 30_000],
    ],
    ['5,000 slices', {}, list(5_000, () => ofEndpoints(1)), ['slicesPerService', 5_000]],
    [
      '1,000 endpoints with 100 ports',
      {},
      [ofEndpoints(1_000, { ports: ports(100) })],
      ['endpointsPerService', 100_000],
    ],
    [
      '10,000 endpoints with 50 addresses',
      { externalIps: ips(50) },
      [ofEndpoints(10_000)],
      ['entriesPerService', 520_052],
    ],
  ])('refuse %s', (_, given, slices, [limit, count]) => {
    expect(exceeded(given, slices)).toEqual({ limit, count, allowed: limits[limit as keyof typeof limits] })
  })

  it('are named with the count, the field and what to do', () => {
    const found = exceeded({ ports: ports(20_000) })
    expect(found && describeExceeded(found)).toBe(
      '20000 ports (spec.ports), more than limits.portsPerService allows (2000); raise the limit in SluiceConfiguration, or split the service',
    )
  })
})
