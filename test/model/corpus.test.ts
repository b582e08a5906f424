// The scenario corpus against the model alone: decode, resolve, trace, and compare with what the files say.

import { describe, expect, it } from 'vitest'
import { findMode } from '../../src/backend/modes.ts'
import { decodeEndpointSlice, decodeService } from '../../src/kube/reflect/objects.ts'
import { type Family, familyOf } from '../../src/lib/ip.ts'
import { frontendKey, olderFirst, withoutFrontends } from '../../src/model/conflicts.ts'
import { resolve } from '../../src/model/resolve.ts'
import { type Outcome, type Packet, trace } from '../../src/model/trace.ts'
import type { ServicePort, ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import { addressesOf, nodeView } from '../scenarios/facts.ts'
import {
  type Expectation,
  type Manifest,
  type Mode,
  manifestKey,
  type NodeSettings,
  type Probe,
} from '../scenarios/format.ts'
import { loadScenarios, loadScenarioText } from '../scenarios/load.ts'
import { ipv4Twin, ipv6Twin } from '../scenarios/twins.ts'

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

  it('holds only objects that decode without a complaint', () => {
    for (const scenario of scenarios) {
      for (const manifest of scenario.steps.flatMap((step) => step.put)) {
        const { problems } = manifest.kind === 'Service' ? decodeService(manifest) : decodeEndpointSlice(manifest)
        expect(problems, `${scenario.name} ${manifestKey(manifest)}`).toEqual([])
      }
    }
  })

  it('maps addresses to twins and back', () => {
    for (const ip of ['172.30.0.41', '203.0.113.130', '10.0.0.2', '192.168.99.11']) {
      expect(ipv4Twin(ipv6Twin(ip))).toBe(ip)
    }
    expect(ipv6Twin('172.30.0.41')).toBe('fd00:172:30::41')
    expect(ipv4Twin('fe80::1')).toBeUndefined()
  })

  it('says which scenario is wrong, and how', () => {
    const text =
      'name: X\ntitle: x\npackets: [{id: a, what: b, from: 10.0.0.2, to: "1.2.3.4:80/tcp", expect: [10.0.0.3:80]}]'
    expect(() => loadScenarioText('x.yaml', text)).toThrow('x.yaml: X: a: says no snat')
  })
})

describe.each(['nftables', 'iptables', 'ipvs', 'userspace'] as const)('the corpus traced as %s', (mode) => {
  for (const scenario of scenarios.filter(({ modes }) => modes.includes(mode))) {
    it(`${scenario.name}: ${scenario.title}`, () => {
      const objects = new Map<string, Manifest>()
      let settings = scenario.node[mode]
      for (const step of scenario.steps) {
        for (const manifest of step.drop) objects.delete(manifestKey(manifest))
        for (const manifest of step.put) objects.set(manifestKey(manifest), manifest)
        settings = step.node?.[mode] ?? settings
        for (const probe of step.probes) {
          const { outcome, told } = traceProbe([...objects.values()], settings, probe, mode)
          expect(outcome, `${probe.id} ${probe.title}\n${told}`).toEqual(wanted(probe, mode))
        }
      }
    })
  }
})

function traceProbe(objects: readonly Manifest[], settings: NodeSettings, probe: Probe, mode: Mode) {
  const node = nodeView(settings, familyOf(probe.to))
  const world = { ports: portsOf(objects, settings, familyOf(probe.to)), node, nodeAddresses: nodeIps(settings, probe) }
  const outcome = trace(world, packetOf(probe, settings), findMode(mode).behaviour(settings))
  return { outcome: summarise(outcome, probe), told: outcome.steps.join('\n') }
}

/** All service ports, with contested frontends left to the oldest. */
function portsOf(objects: readonly Manifest[], settings: NodeSettings, family: Family): readonly ServicePort[] {
  const decoded = <R>(kind: string, decode: (json: unknown) => { record: R | undefined }) =>
    objects.filter((object) => object.kind === kind).flatMap((object) => decode(object).record ?? [])
  const services = decoded<ServiceRecord>('Service', decodeService).sort(olderFirst)
  const slices = decoded<SliceRecord>('EndpointSlice', decodeEndpointSlice)
  const taken = new Set<string>()
  return services
    .flatMap((service) => resolve(service, slices, nodeView(settings, family)))
    .map((port) => {
      const keys = port.frontends.map((frontend) => frontendKey(frontend, port.protocol))
      const lost = new Set(keys.filter((key) => taken.has(key)))
      for (const key of keys) taken.add(key)
      return withoutFrontends(port, lost)
    })
}

/** A source that the scenario puts on the node is an address of the node. */
function nodeIps(settings: NodeSettings, probe: Probe): readonly string[] {
  const own = addressesOf(settings, familyOf(probe.to))
  return probe.at === 'node' && !own.includes(probe.from) ? [...own, probe.from] : own
}

function packetOf(probe: Probe, settings: NodeSettings): Packet {
  const { from, to, port, protocol, at } = probe
  const origin = at === 'pod' || at === 'node' ? at : 'outside'
  const bridged = settings.detector !== 'none' && 'interface' in settings.detector
  const entry = { pod: bridged ? 'br-pods' : 'pod0', node: undefined, remote: 'far', outside: 'world' }[at]
  return { from, to, port, protocol, origin, ...(entry === undefined ? {} : { inInterface: entry }) }
}

/** Endpoint to "its source is rewritten", or the verdict; and whether the client is to keep its endpoint. */
type Summary = { verdict: string } | { endpoints: Record<string, boolean>; affinity: boolean }

function summarise(outcome: Outcome, probe: Probe): Summary {
  if (outcome.verdict !== 'forward') return { verdict: outcome.verdict }
  return {
    endpoints: Object.fromEntries(outcome.endpoints.map(({ address, snat }) => [address, snat])),
    // A file need not ask for stickiness of every packet of a service with affinity.
    affinity: probe.sticky === '' ? false : outcome.affinity > 0,
  }
}

function wanted(probe: Probe, mode: Mode): Summary {
  const { outcome, snat: stated }: Expectation = probe.expect[mode]
  if (typeof outcome === 'string') return { verdict: outcome }
  // The files say what holds in every mode; that this one hides clients and knows no SCTP holds for every packet.
  if (mode === 'userspace' && probe.protocol === 'sctp') return { verdict: 'reject' }
  const snat = mode === 'userspace' ? true : stated
  const rewritten = (endpoint: string) =>
    snat === 'hairpin' ? endpoint.replace(/:\d+$/, '').replace(/[[\]]/g, '') === probe.from : snat === true
  return {
    endpoints: Object.fromEntries(outcome.map((endpoint) => [endpoint, rewritten(endpoint)])),
    affinity: probe.sticky !== '',
  }
}

function range(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, i) => first + i)
}
