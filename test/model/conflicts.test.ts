// Checks which service wins a contested address: the same one in any order of events.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { compareClaimants, conflictReason, frontendKey, rankOf, withoutFrontends } from '../../src/model/conflicts.ts'
import type { ServicePort } from '../../src/model/types.ts'
import { service, tcp, view } from '../support/builders.ts'
import { resolve } from '../support/resolve.ts'

const portOf = (given: Parameters<typeof service>[0], node = view()) =>
  resolve(service(given), [], node)[0] as ServicePort

describe('frontendKey', () => {
  it('consists of address, port and protocol, without the address for node ports', () => {
    const port = portOf({ ports: [tcp(80, 'p80', 3001)], externalIps: ['192.168.99.11'] })
    expect(port.frontends.map((frontend) => frontendKey(frontend, port.protocol))).toEqual([
      '172.30.0.41:80/tcp',
      '192.168.99.11:80/tcp',
      ':3001/tcp',
    ])
    const six = portOf({ clusterIps: ['fd00::41'] }, view({ family: 6 }))
    expect(six.frontends.map((frontend) => frontendKey(frontend, 'udp'))).toEqual(['[fd00::41]:80/udp'])
  })
})

describe('compareClaimants', () => {
  const old = service({ key: 'ns9/z', created: 1000 })
  const young = service({ key: 'ns1/a', created: 2000 })
  const sameAge = service({ key: 'ns9/a', created: 1000 })
  const claimant = (record: typeof old, rank = 0) => ({ record, rank })

  it('prefers the older service, then the smaller key', () => {
    const sorted = [claimant(young), claimant(old), claimant(sameAge)].sort(compareClaimants)
    expect(sorted.map(({ record }) => record)).toEqual([sameAge, old, young])
    expect(compareClaimants(claimant(old), claimant(old))).toBe(0)
  })

  it('prefers a cluster IP to a load-balancer IP, and that to an external IP, whatever the age', () => {
    const kinds = ['external-ip', 'load-balancer', 'cluster-ip'] as const
    const claimants = kinds.map((kind, i) => claimant({ ...old, created: i }, rankOf(kind, 'kind')))
    expect(claimants.sort(compareClaimants).map(({ rank }) => rank)).toEqual([0, 1, 2])
    expect(conflictReason(claimant(young, 0), claimant(old, 2))).toBe('kind')
    expect(conflictReason(claimant(old), claimant(young))).toBe('age')
  })

  it('looks at the age alone if the configuration asks for that', () => {
    const external = claimant(old, rankOf('external-ip', 'age'))
    const cluster = claimant(young, rankOf('cluster-ip', 'age'))
    expect(compareClaimants(external, cluster)).toBeLessThan(0)
  })

  it('sorts claimants the same way from any order', () => {
    const claimant = fc.record({
      key: fc.constantFrom('a/a', 'a/b', 'b/a', 'b/b'),
      created: fc.constantFrom(0, 1000, 2000),
      rank: fc.constantFrom(0, 1, 2),
    })
    const claimants = fc.uniqueArray(claimant, { selector: ({ key }) => key })
    fc.assert(
      fc.property(
        claimants.chain((all) => fc.tuple(fc.constant(all), fc.shuffledSubarray(all, { minLength: all.length }))),
        ([a, b]) => {
          const order = (all: typeof a) =>
            all.map((given) => ({ record: service(given), rank: given.rank })).sort(compareClaimants)
          expect(order(b)).toEqual(order(a))
        },
      ),
    )
  })
})

describe('withoutFrontends', () => {
  const port = portOf({ ports: [tcp(80, 'p80', 3001)], externalIps: ['192.168.99.11'] })

  it('removes exactly the lost frontends', () => {
    const left = withoutFrontends(port, new Set(['192.168.99.11:80/tcp', ':3001/udp']))
    expect(left.frontends.map(({ kind }) => kind)).toEqual(['cluster-ip', 'node-port'])
    expect({ ...left, frontends: port.frontends }).toEqual(port)
  })

  it('returns the port itself if it lost nothing', () => {
    expect(withoutFrontends(port, new Set())).toBe(port)
    expect(withoutFrontends(port, new Set(['1.1.1.1:80/tcp']))).toBe(port)
  })
})
