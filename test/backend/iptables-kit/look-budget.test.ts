import { expect, it } from 'vitest'
import { LookBudget } from '../../../src/backend/iptables-kit/look-budget.ts'

it('allows three looks in a row, then a twentieth of the time', () => {
  let budget = new LookBudget()
  let now = 0
  for (let i = 0; i < 3; i++) {
    expect(budget.waitMs(now)).toBeLessThanOrEqual(0)
    budget = budget.spend(now, 100)
    now += 100
  }
  const waitMs = budget.waitMs(now)
  // Three looks cost 6000 ms of waiting, two of them are free, and 300 ms have passed.
  expect(waitMs).toBeCloseTo(1700)
  expect(budget.waitMs(now + waitMs)).toBeCloseTo(0)
})

it('does not save up for later', () => {
  const budget = new LookBudget().spend(0, 100)
  const later = budget.spend(1_000_000, 100)
  expect(later.waitMs(1_000_100)).toBe(budget.waitMs(100))
})
