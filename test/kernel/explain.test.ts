// Compares the answers of `explain` with real packets: the answers replace the expectations of the scenario files.
// By default only a sample of the corpus runs; EXPLAIN=* runs all of it.

import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { asExpectation, explainScenario } from '../inspect/corpus-explain.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { Lab } from '../lab/lab.ts'
import { arrangementOf, playScenario } from '../lab/play.ts'
import type { Expectation, Probe, Scenario } from '../scenarios/format.ts'
import { loadScenarios } from '../scenarios/load.ts'

const mode = 'nftables'
const only = (process.env.EXPLAIN ?? 'S1,S2,S3,S4e,S5,S7b,S8b,S9b,S10a').split(',')

const scenarios = loadScenarios().filter(
  (scenario) => scenario.modes.includes(mode) && (only.includes('*') || only.includes(scenario.name)),
)

/** Returns the scenario with only those packets that can be explained, each with its explanation as the expectation. */
async function withExplanations(scenario: Scenario): Promise<Scenario> {
  const answers = new Map(
    (await explainScenario(scenario, mode)).map(({ probe, answer }) => [probe, asExpectation(answer)]),
  )
  const withAnswer = (probe: Probe): Probe => ({
    ...probe,
    expect: { ...probe.expect, [mode]: answers.get(probe) as Expectation },
  })
  return {
    ...scenario,
    steps: scenario.steps.map((step) => ({
      ...step,
      probes: step.probes.filter((probe) => answers.has(probe)).map(withAnswer),
    })),
  }
}

describe('explain against real packets', () => {
  let lab: Lab
  const driver = new EngineDriver({ holdings: async () => [] })
  // Some scenarios need the proxy to listen on loopback; there the lab must not listen itself.
  const listening = new EngineDriver({ holdings: async () => [], listens: true })

  beforeAll(async () => {
    lab = await Lab.create([...new Set(scenarios.flatMap((scenario) => arrangementOf(scenario).localPods))])
  })

  afterAll(async () => {
    driver.close()
    listening.close()
    await lab.close()
  })

  for (const scenario of scenarios) {
    it(`${scenario.name}: ${scenario.title}`, async (context) => {
      if (scenario.needs.some((need) => !driver.provides.includes(need))) context.skip()
      const { complaints, attempts } = await playScenario({
        lab,
        driver: scenario.name.startsWith('S4h') ? listening : driver,
        scenario: await withExplanations(scenario),
        mode,
        deviations: [],
      })
      expect(complaints).toEqual([])
      expect(attempts).toBeGreaterThan(0)
    })
  }

  it('notices a wrong explanation', async () => {
    const scenario = await withExplanations(scenarios.find(({ name }) => name === 'S1') as Scenario)
    const withWrongAnswer = (probe: Probe): Probe => ({
      ...probe,
      expect: { ...probe.expect, [mode]: { outcome: 'drop', snat: undefined } },
    })
    const { complaints } = await playScenario({
      lab,
      driver,
      scenario: {
        ...scenario,
        steps: scenario.steps.map((step) => ({ ...step, probes: step.probes.slice(0, 1).map(withWrongAnswer) })),
      },
      mode,
      deviations: [],
    })
    expect(complaints).toHaveLength(1)
  })
})
