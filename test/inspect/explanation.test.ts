// `explain` over the whole scenario corpus: its answer is the file's.

import { describe, expect, it } from 'vitest'
import type { Explanation } from '../../src/http/admin.ts'
import type { Expectation, Probe } from '../scenarios/format.ts'
import { loadScenarios } from '../scenarios/load.ts'
import { explainScenario } from './corpus-explain.ts'

describe.each(['nftables', 'iptables'] as const)('explain over the corpus, %s', (mode) => {
  for (const scenario of loadScenarios().filter(({ modes }) => modes.includes(mode))) {
    it(`${scenario.name}: ${scenario.title}`, async () => {
      for (const { probe, answer } of await explainScenario(scenario, mode)) {
        expect(summary(answer), `${probe.id} ${probe.title}`).toEqual(wanted(probe.expect[mode], probe))
        checkSense(answer)
      }
    })
  }
})

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
