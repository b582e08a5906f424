// The share of a flood that is followed: it shrinks at once and grows after quiet seconds.

import { expect, it } from 'vitest'
import { FlowSampler } from '../../../src/engine/flows/flow-sampler.ts'

it('follows at most a bounded number of new flows per second, and all of them again when it is quiet', () => {
  const sampler = new FlowSampler()
  for (let i = 0; i < 250; i++) sampler.count()
  expect(sampler.rate).toBe(1)
  expect(sampler.count()).toBe(true)
  expect(sampler.rate).toBe(2)
  sampler.raise()
  expect(sampler.rate).toBe(4)
  for (let second = 0; second < 6; second++) sampler.tick()
  expect(sampler.rate).toBe(1)
})
