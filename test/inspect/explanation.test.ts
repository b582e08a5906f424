// Compares the answers of `explain` with the expectations of the whole scenario corpus.

import { describe, it } from 'vitest'
import { loadScenarios } from '../scenarios/load.ts'
import { checkExplanations } from './corpus-explain.ts'

describe.each(['nftables', 'iptables'] as const)('explain over the corpus, %s', (mode) => {
  for (const scenario of loadScenarios().filter(({ modes }) => modes.includes(mode))) {
    it(`${scenario.name}: ${scenario.title}`, () => checkExplanations(scenario, mode))
  }
})
