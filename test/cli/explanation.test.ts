// `explain` over the whole scenario corpus: its answer is the file's, and that of `trace`.

import { describe, expect, it } from 'vitest'
import { dialectOf } from '../../src/cli/dialects.ts'
import { explain, type Stage } from '../../src/cli/explanation.ts'
import { settingsOf } from '../../src/cli/settings.ts'
import { configOf, plannerOf } from '../../src/cli/source.ts'
import { Twin } from '../../src/cli/twin.ts'
import type { Explanation } from '../../src/http/admin.ts'
import { decodeEndpointSlice, decodeService } from '../../src/kube/objects.ts'
import { familyOf, hostPort } from '../../src/lib/ip.ts'
import { addressesOf, nodeView } from '../scenarios/facts.ts'
import { type Expectation, type Manifest, manifestKey, type NodeSettings, type Probe } from '../scenarios/format.ts'
import { loadScenarios } from '../scenarios/load.ts'

const decoded = <R>(objects: Iterable<Manifest>, kind: string, decode: (json: unknown) => { record: R | undefined }) =>
  [...objects].filter((object) => object.kind === kind).flatMap((object) => decode(object).record ?? [])

describe.each(['nftables', 'iptables'] as const)('explain over the corpus, %s', (mode) => {
  for (const scenario of loadScenarios().filter(({ modes }) => modes.includes(mode))) {
    it(`${scenario.name}: ${scenario.title}`, async () => {
      const objects = new Map<string, Manifest>()
      let settings = scenario.node[mode]
      for (const step of scenario.steps) {
        for (const manifest of step.drop) objects.delete(manifestKey(manifest))
        for (const manifest of step.put) objects.set(manifestKey(manifest), manifest)
        settings = step.node?.[mode] ?? settings
        const told = {
          ...settingsOf(configOf(new Map([['mode', mode]]))),
          localhostNodePorts: settings.localhostNodePorts,
        }
        const views = scenario.families.map((family) => nodeView(settings, family))
        const backend = plannerOf(mode, told)
        const twin = await Twin.open({ backend, views })
        await twin.become({
          services: decoded(objects.values(), 'Service', decodeService),
          slices: decoded(objects.values(), 'EndpointSlice', decodeEndpointSlice),
        })
        for (const probe of step.probes) {
          // Where a packet enters cannot be told from its address alone: those probes are for the other runners.
          if (!toldByAddress(probe, settings)) continue
          const stage: Stage = {
            desired: twin,
            backend,
            dialect: dialectOf(mode, told),
            views,
            nodeAddresses: own(settings, probe),
          }
          const [answer] = await explain(stage, {
            target: `${hostPort(probe.to, probe.port)}/${probe.protocol}`,
            from: probe.from,
          })
          expect(summary(answer as Explanation), `${probe.id} ${probe.title}`).toEqual(
            wanted(probe.expect[mode], probe),
          )
          checkSense(answer as Explanation)
        }
        await twin.close()
      }
    })
  }
})

const own = (settings: NodeSettings, probe: Probe): readonly string[] => {
  const addresses = addressesOf(settings, familyOf(probe.to))
  return probe.at === 'node' && !addresses.includes(probe.from) ? [...addresses, probe.from] : addresses
}

function toldByAddress(probe: Probe, { detector }: NodeSettings): boolean {
  return detector === 'none' || 'cidrs' in detector || probe.at === 'node' || probe.at === 'outside'
}

function summary({ verdict, endpoints }: Explanation): unknown {
  if (verdict !== 'forward') return verdict
  return Object.fromEntries(
    endpoints.filter(({ probability }) => probability > 0).map(({ address, snat }) => [address, snat]),
  )
}

function wanted({ outcome, snat }: Expectation, probe: Probe): unknown {
  if (typeof outcome === 'string') return outcome
  const rewritten = (endpoint: string) =>
    snat === 'hairpin' ? endpoint.replace(/:\d+$/, '').replace(/[[\]]/g, '') === probe.from : snat === true
  return Object.fromEntries(outcome.map((endpoint) => [endpoint, rewritten(endpoint)]))
}

/** What must hold of every answer, whatever the question. */
function checkSense({ verdict, endpoints, steps, service, entries, reason }: Explanation): void {
  const shares = endpoints.reduce((sum, { probability }) => sum + probability, 0)
  expect(shares).toBeCloseTo(verdict === 'forward' ? 1 : 0)
  expect(steps.length).toBeGreaterThan(0)
  for (const { why } of endpoints) expect(why).toMatch(/\S/)
  if (verdict === 'forward') {
    expect(service).not.toBe('')
    expect(entries.length).toBeGreaterThan(0)
  } else expect(reason).toBeDefined()
}
