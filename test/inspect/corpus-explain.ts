// Asks `explain` about every packet of the scenario corpus.

import { expect } from 'vitest'
import { findMode } from '../../src/backend/modes.ts'
import type { ProxyMode } from '../../src/backend/proxy-mode.ts'
import { configFrom } from '../../src/commands/sources/source.ts'
import { defaultSluiceConfig } from '../../src/config/sluice-config.ts'
import { makeSettings } from '../../src/daemon/backend-settings.ts'
import type { Explanation } from '../../src/http/admin.ts'
import { DryRun } from '../../src/inspect/dry-run.ts'
import { type ExplainContext, explain } from '../../src/inspect/explanation.ts'
import { decodeEndpointSlice } from '../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../../src/kube/decode/decode-service.ts'
import { familyOf, hostPort } from '../../src/lib/ip.ts'
import {
  type Expectation,
  type Manifest,
  type Mode,
  manifestKey,
  type NodeSettings,
  type Probe,
  type Scenario,
  type Step,
} from '../scenarios/format.ts'
import { addressesOf, nodeView } from '../scenarios/node-facts.ts'

export interface Explained {
  readonly step: Step
  readonly probe: Probe
  readonly answer: Explanation
}

/** Detectors that look at interfaces see more than an address shows: with them, only packets from the node or from outside can be explained. */
export const isShownByAddress = (probe: Probe, { detector }: NodeSettings): boolean =>
  detector === 'none' || 'cidrs' in detector || probe.at === 'node' || probe.at === 'outside'

/** `mode` names the expectations; `proxyMode` answers, which is usually the mode of that name. */
export async function explainScenario(
  scenario: Scenario,
  mode: Mode,
  proxyMode: ProxyMode = findMode(mode),
): Promise<readonly Explained[]> {
  const objects = new Map<string, Manifest>()
  const explained: Explained[] = []
  let settings = scenario.node[mode]
  for (const step of scenario.steps) {
    for (const manifest of step.drop) objects.delete(manifestKey(manifest))
    for (const manifest of step.put) objects.set(manifestKey(manifest), manifest)
    settings = step.node?.[mode] ?? settings
    const defaultSettings = makeSettings(configFrom(new Map([['mode', mode]])))
    const backendSettings = { ...defaultSettings, localhostNodePorts: settings.localhostNodePorts }
    const views = scenario.families.map((family) => nodeView(settings, family))
    const backend = proxyMode.makeBackend(backendSettings)
    const dryRun = await DryRun.open({ backend, views, limits: defaultSluiceConfig().limits })
    await dryRun.replaceObjects({
      services: decoded(objects.values(), 'Service', decodeService),
      slices: decoded(objects.values(), 'EndpointSlice', decodeEndpointSlice),
    })
    for (const probe of step.probes) {
      if (!isShownByAddress(probe, settings)) continue
      const behaviour = proxyMode.behaviour(backendSettings)
      const nodeAddresses = nodeAddressesOf(settings, probe)
      const context: ExplainContext = { desired: dryRun, backend, mode: proxyMode, behaviour, views, nodeAddresses }
      const target = `${hostPort(probe.to, probe.port)}/${probe.protocol}`
      const [answer] = await explain(context, { target, from: probe.from })
      if (answer === undefined) throw new Error(`${scenario.name} ${probe.id}: no answer`)
      explained.push({ step, probe, answer })
    }
    await dryRun.close()
  }
  return explained
}

/** Converts an answer to the form that scenario files use for expectations. */
export function asExpectation({ verdict, endpoints, snat, hairpin }: Explanation): Expectation {
  if (verdict !== 'forward') return { outcome: verdict, snat: undefined }
  const outcome = endpoints.filter(({ probability }) => probability > 0).map(({ address }) => address)
  return { outcome, snat: hairpin ? 'hairpin' : snat === true }
}

const decoded = <R>(objects: Iterable<Manifest>, kind: string, decode: (json: unknown) => { record: R | undefined }) =>
  [...objects].filter((object) => object.kind === kind).flatMap((object) => decode(object).record ?? [])

const nodeAddressesOf = (settings: NodeSettings, probe: Probe): readonly string[] => {
  const addresses = addressesOf(settings, familyOf(probe.to))
  return probe.at === 'node' && !addresses.includes(probe.from) ? [...addresses, probe.from] : addresses
}

/** Explains every packet of a scenario and compares the answers with the scenario file. */
export async function checkExplanations(scenario: Scenario, mode: Mode, proxyMode?: ProxyMode): Promise<void> {
  for (const { probe, answer } of await explainScenario(scenario, mode, proxyMode)) {
    expect(summary(answer), `${probe.id} ${probe.title}`).toEqual(wanted(probe.expect[mode], probe))
    checkSense(answer)
  }
}

function summary({ verdict, endpoints }: Explanation): unknown {
  if (verdict !== 'forward') return verdict
  const used = endpoints.filter(({ probability }) => probability > 0)
  return Object.fromEntries(used.map(({ address, snat }) => [address, snat]))
}

function wanted({ outcome, snat }: Expectation, probe: Probe): unknown {
  if (typeof outcome === 'string') return outcome
  const rewritten = (endpoint: string) =>
    snat === 'hairpin' ? endpoint.replace(/:\d+$/, '').replace(/[[\]]/g, '') === probe.from : snat === true
  return Object.fromEntries(outcome.map((endpoint) => [endpoint, rewritten(endpoint)]))
}

/** Checks what must hold for every answer. */
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
