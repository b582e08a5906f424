// Runs the corpus as vitest tests, one per scenario. Tests of a mode call only this.

import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Family } from '../../src/lib/ip.ts'
import type { Protocol } from '../../src/model/types.ts'
import type { Mode, Scenario } from '../scenarios/format.ts'
import { loadScenarios } from '../scenarios/load.ts'
import { type Deviation, type Driver, findDeviation } from './driver.ts'
import { Lab } from './lab.ts'
import { arrangementOf, playScenario } from './play.ts'
import { inVm } from './vm.ts'

export interface CorpusOptions {
  readonly mode: Mode
  /** Default: both. */
  readonly families?: readonly Family[]
  /** Protocols whose packets are sent. Default: all. */
  readonly protocols?: readonly Protocol[]
  readonly deviations?: readonly Deviation[]
  /** Names with `*`; default: all scenarios of the mode. */
  readonly only?: readonly string[]
  /** Selects among them; a twin is passed with its own name. Default: all. */
  readonly wanted?: (name: string) => boolean
  /** Scenarios at a time, each with its own lab and driver. Default: 3, since most of the time is waiting; 2 in a VM. */
  readonly lanes?: number
}

interface Lane {
  readonly lab: Lab
  readonly driver: Driver
}

/** Declares the tests. `makeDriver` is called once per lane, before the first scenario. */
export function runCorpus(makeDriver: (lab: Lab) => Driver | Promise<Driver>, options: CorpusOptions): void {
  const {
    mode,
    families = [4, 6],
    protocols = ['tcp', 'udp', 'sctp'],
    deviations = [],
    only = ['*'],
    lanes = inVm ? 2 : 3,
    wanted = () => true,
  } = options
  const scenarios = loadScenarios().filter(
    (scenario) =>
      scenario.modes.includes(mode) &&
      scenario.families.every((family) => families.includes(family)) &&
      scenario.protocols.some((protocol) => protocols.includes(protocol)) &&
      findDeviation([{ reason: '', scenarios: only }], scenario.name) !== undefined &&
      wanted(scenario.name),
  )
  describe(`the corpus in the kernel, ${mode}`, () => {
    const all: Lane[] = []
    const free: Lane[] = []
    const waiting: ((lane: Lane) => void)[] = []
    const totals = { attempts: 0, late: 0, unsent: 0, begun: 0 }

    beforeAll(async () => {
      totals.begun = performance.now()
      const pods = [...new Set(scenarios.flatMap((scenario) => arrangementOf(scenario).localPods))]
      for (let i = 0; i < lanes; i++) {
        const lab = await Lab.create(pods)
        all.push({ lab, driver: await makeDriver(lab) })
      }
      free.push(...all)
    })

    afterAll(async () => {
      for (const { lab } of all) await lab.close()
      const { attempts, late, unsent, begun } = totals
      const seconds = Math.round((performance.now() - begun) / 1000)
      console.log(`${scenarios.length} scenarios, ${attempts} packets (${late} late, ${unsent} not sent), ${seconds} s`)
    })

    const withLane = async <T>(work: (lane: Lane) => Promise<T>): Promise<T> => {
      const lane = free.pop() ?? (await new Promise<Lane>((resolve) => waiting.push(resolve)))
      try {
        return await work(lane)
      } finally {
        const next = waiting.shift()
        if (next === undefined) free.push(lane)
        else next(lane)
      }
    }

    it('has only deviations that concern something', () => {
      const idle = deviations.flatMap((deviation) =>
        deviation.scenarios.filter((pattern) => !concerns({ ...deviation, scenarios: [pattern] }, loadScenarios())),
      )
      expect(idle).toEqual([])
    })

    for (const scenario of scenarios) {
      const deviation = findDeviation(deviations, scenario.name)
      if (deviation !== undefined) {
        it.skip(`${scenario.name}: ${scenario.title} [${deviation.reason}]`, () => undefined)
        continue
      }
      it.concurrent(`${scenario.name}: ${scenario.title}`, async (context) => {
        const played = await withLane(({ lab, driver }) => {
          const missing = scenario.needs.filter((need) => !driver.provides.includes(need))
          if (missing.length > 0) context.skip(`needs ${missing.join(', ')}`)
          return playScenario({ lab, driver, scenario, mode, deviations, protocols })
        })
        totals.attempts += played.attempts
        totals.late += played.late
        totals.unsent += played.unsent.length
        context.expect(played.complaints).toEqual([])
      })
    }
  })
}

function concerns(deviation: Deviation, scenarios: readonly Scenario[]): boolean {
  return scenarios.some(
    ({ name, steps }) =>
      findDeviation([deviation], name) !== undefined ||
      steps.some((step) => step.probes.some(({ id }) => findDeviation([deviation], name, id) !== undefined)),
  )
}
