// Runs the scenario corpus against the model alone, and checks the corpus itself.

import { describe, expect, it } from 'vitest'
import { decodeEndpointSlice } from '../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../../src/kube/decode/decode-service.ts'
import { manifestKey } from '../scenarios/format.ts'
import { loadScenarios, loadScenarioText } from '../scenarios/load.ts'
import { ipv4Twin, ipv6Twin } from '../scenarios/twins.ts'
import { checkTraces } from './corpus-trace.ts'

const scenarios = loadScenarios()

/** Rows of the packet-flow table, by number. */
const rows = [...range(1, 78), ...range(81, 84), ...range(89, 92), ...range(97, 126)].map((n) => `F${n}`)

describe('the corpus itself', () => {
  it('has every row of the packet-flow table', () => {
    const ids = new Set(scenarios.flatMap(({ steps }) => steps.flatMap(({ probes }) => probes.map(({ id }) => id))))
    expect(rows.filter((row) => !ids.has(row))).toEqual([])
  })

  it('covers both families with TCP and UDP', () => {
    const seen = new Set(scenarios.flatMap((s) => s.families.flatMap((f) => s.protocols.map((p) => `${f}/${p}`))))
    expect([...seen].sort()).toEqual(['4/sctp', '4/tcp', '4/udp', '6/sctp', '6/tcp', '6/udp'])
  })

  it('has only objects that decode without problems', () => {
    for (const scenario of scenarios) {
      for (const manifest of scenario.steps.flatMap((step) => step.put)) {
        const { problems } = manifest.kind === 'Service' ? decodeService(manifest) : decodeEndpointSlice(manifest)
        expect(problems, `${scenario.name} ${manifestKey(manifest)}`).toEqual([])
      }
    }
  })

  it('maps IPv4 addresses to their IPv6 counterparts and back', () => {
    for (const ip of ['172.30.0.41', '203.0.113.130', '10.0.0.2', '192.168.99.11']) {
      expect(ipv4Twin(ipv6Twin(ip))).toBe(ip)
    }
    expect(ipv6Twin('172.30.0.41')).toBe('fd00:172:30::41')
    expect(ipv4Twin('fe80::1')).toBeUndefined()
  })

  it('names the invalid scenario and its problem', () => {
    const text =
      'name: X\ntitle: x\npackets: [{id: a, what: b, from: 10.0.0.2, to: "1.2.3.4:80/tcp", expect: [10.0.0.3:80]}]'
    expect(() => loadScenarioText('x.yaml', text)).toThrow('x.yaml: X: a: snat is missing')
  })
})

describe.each(['nftables', 'iptables', 'ipvs', 'userspace'] as const)('the corpus traced as %s', (mode) => {
  for (const scenario of scenarios.filter(({ modes }) => modes.includes(mode))) {
    it(`${scenario.name}: ${scenario.title}`, () => checkTraces(scenario, mode))
  }
})

function range(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, i) => first + i)
}
