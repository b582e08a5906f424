// The scenarios of the corpus put to `explain`: what it answers to each of their packets.

import { configOf, plannerOf } from '../../src/commands/sources/source.ts'
import { settingsOf } from '../../src/daemon/backend-settings.ts'
import type { Explanation } from '../../src/http/admin.ts'
import { behaviourOf } from '../../src/inspect/behaviour-of.ts'
import { DryRun } from '../../src/inspect/dry-run.ts'
import { type ExplainContext, explain } from '../../src/inspect/explanation.ts'
import { decodeEndpointSlice, decodeService } from '../../src/kube/reflect/objects.ts'
import { familyOf, hostPort } from '../../src/lib/ip.ts'
import { addressesOf, nodeView } from '../scenarios/facts.ts'
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

export interface Explained {
  readonly step: Step
  readonly probe: Probe
  readonly answer: Explanation
}

/** Where a packet enters cannot be told from its address alone: with such detectors only some can be explained. */
export const toldByAddress = (probe: Probe, { detector }: NodeSettings): boolean =>
  detector === 'none' || 'cidrs' in detector || probe.at === 'node' || probe.at === 'outside'

export async function explainScenario(scenario: Scenario, mode: Mode): Promise<readonly Explained[]> {
  const objects = new Map<string, Manifest>()
  const explained: Explained[] = []
  let settings = scenario.node[mode]
  for (const step of scenario.steps) {
    for (const manifest of step.drop) objects.delete(manifestKey(manifest))
    for (const manifest of step.put) objects.set(manifestKey(manifest), manifest)
    settings = step.node?.[mode] ?? settings
    const defaults = settingsOf(configOf(new Map([['mode', mode]])))
    const told = { ...defaults, localhostNodePorts: settings.localhostNodePorts }
    const views = scenario.families.map((family) => nodeView(settings, family))
    const backend = plannerOf(mode, told)
    const twin = await DryRun.open({ backend, views })
    await twin.replaceObjects({
      services: decoded(objects.values(), 'Service', decodeService),
      slices: decoded(objects.values(), 'EndpointSlice', decodeEndpointSlice),
    })
    for (const probe of step.probes) {
      if (!toldByAddress(probe, settings)) continue
      const dialect = behaviourOf(mode, told)
      const stage: ExplainContext = { desired: twin, backend, dialect, views, nodeAddresses: own(settings, probe) }
      const target = `${hostPort(probe.to, probe.port)}/${probe.protocol}`
      const [answer] = await explain(stage, { target, from: probe.from })
      if (answer === undefined) throw new Error(`${scenario.name} ${probe.id}: no answer`)
      explained.push({ step, probe, answer })
    }
    await twin.close()
  }
  return explained
}

/** An answer in the words of the scenario files. */
export function asExpectation({ verdict, endpoints, snat }: Explanation): Expectation {
  if (verdict !== 'forward') return { outcome: verdict, snat: undefined }
  const outcome = endpoints.filter(({ probability }) => probability > 0).map(({ address }) => address)
  return { outcome, snat: snat === 'hairpin' ? 'hairpin' : snat === 'yes' }
}

const decoded = <R>(objects: Iterable<Manifest>, kind: string, decode: (json: unknown) => { record: R | undefined }) =>
  [...objects].filter((object) => object.kind === kind).flatMap((object) => decode(object).record ?? [])

const own = (settings: NodeSettings, probe: Probe): readonly string[] => {
  const addresses = addressesOf(settings, familyOf(probe.to))
  return probe.at === 'node' && !addresses.includes(probe.from) ? [...addresses, probe.from] : addresses
}
