// Checks that walks over big objects give what a simple search gives, and that they do not read a list once per element of another.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { removeNested } from '../../src/backend/nftables/plan.ts'
import { contains, familyOf, parseCidr } from '../../src/lib/ip.ts'
import { candidatesOf, findCandidates } from '../../src/model/endpoints.ts'
import { addressesOf } from '../../src/model/frontends.ts'
import type { SlicePortRecord } from '../../src/model/types.ts'
import { endpoint, service, slice, view } from '../support/builders.ts'

const here = view()

/** A list whose elements may be read `limit` times in all. */
function limited<T>(list: readonly T[], limit: number): readonly T[] {
  let reads = 0
  const get = (target: readonly T[], key: string | symbol) => {
    if (typeof key === 'string' && /^\d+$/.test(key) && ++reads > limit) throw new Error(`more than ${limit} reads`)
    return Reflect.get(target, key)
  }
  return new Proxy(list, { get })
}

const ip = fc.constantFrom('172.30.0.41', '1.1.1.1', '1.1.1.2', '1.1.1.3', '1.1.1.4', 'fd00::1')

describe('addresses of a service', () => {
  it('has every address once: as cluster IP, else as load balancer IP, else as external IP', () => {
    fc.assert(
      fc.property(fc.array(ip), fc.array(ip), (loadBalancerIps, externalIps) => {
        const own = (list: readonly string[], taken: readonly string[]) =>
          list.filter((one, i) => familyOf(one) === 4 && !taken.includes(one) && list.indexOf(one) === i)
        const balancers = own(loadBalancerIps, ['172.30.0.41'])
        const found = addressesOf(service({ loadBalancerIps, externalIps }), here)
        expect(found?.loadBalancerIps).toEqual(balancers)
        expect(found?.externalIps).toEqual(own(externalIps, ['172.30.0.41', ...balancers]))
      }),
    )
  })

  it('reads each of 20,000 external IPs a bounded number of times', () => {
    const ips = Array.from({ length: 20_000 }, (_, i) => `20.0.${i >> 8}.${i & 255}`)
    const list = limited(ips, 100_000)
    expect(addressesOf(service({ externalIps: list }), here)?.externalIps).toHaveLength(20_000)
  })
})

describe('endpoints of many ports', () => {
  const portOf = fc.record<SlicePortRecord>({
    name: fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j'),
    protocol: fc.constantFrom('tcp', 'udp'),
    port: fc.integer({ min: 0, max: 3 }),
  })

  it('are those that a search for one port finds', () => {
    const slices = fc.array(
      fc.record({ ports: fc.array(portOf), ips: fc.array(fc.constantFrom('10.0.1.1', '10.0.1.2')) }),
    )
    fc.assert(
      fc.property(slices, fc.array(portOf, { minLength: 9 }), (given, ports) => {
        const own = given.map(({ ports, ips }, i) =>
          slice(
            ips.map((one) => endpoint(one)),
            { key: `ns1/${i}`, ports },
          ),
        )
        const find = findCandidates(ports, own, here)
        for (const port of ports) expect(find(port)).toEqual(candidatesOf(own, port.name, port.protocol, here))
      }),
    )
  })

  it('are found without reading all ports of a slice once per port of the service', () => {
    const ports = Array.from({ length: 5_000 }, (_, i) => ({ name: `p${i}`, protocol: 'tcp' as const, port: i + 1 }))
    const list = limited(ports, 20_000)
    const find = findCandidates(ports, [slice([endpoint('10.0.1.1')], { ports: list })], here)
    for (const port of ports) expect(find(port)).toHaveLength(1)
  })
})

describe('source ranges', () => {
  it('are those that lie in no other range', () => {
    const range = fc.tuple(fc.integer({ min: 0, max: 7 }), fc.integer({ min: 0, max: 32 }))
    fc.assert(
      fc.property(fc.array(range), (given) => {
        const cidrs = given.map(([n, bits]) => parseCidr(`10.0.${n}.${n * 32}/${bits}`))
        const texts = [...new Set(cidrs.map((cidr) => cidr?.text ?? ''))]
        const outer = texts.filter((text) => {
          const own = parseCidr(text)
          return !cidrs.some((other) => other && own && other.bits < own.bits && contains(other, own.ip))
        })
        expect(removeNested(texts)).toEqual(outer)
      }),
    )
  })
})
