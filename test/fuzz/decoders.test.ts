// A short run of every fuzz target, from the seeds and from random changes of them. `npm run fuzz` runs them for as long as one likes.

import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { decodeEndpointSlice } from '../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeNode, decodeServiceCidr } from '../../src/kube/decode/decode-node.ts'
import { decodeService } from '../../src/kube/decode/decode-service.ts'
import { mutateBytes, mutateJson } from './mutate.ts'
import { readSeeds } from './seeds.ts'
import { fuzzTargets } from './targets.ts'

const limitMs = Number(process.env.FUZZ_SECONDS ?? 1) * 1_000
// The same changes each time, so that a change of the code is what makes it fail; more time means other and more changes.
const seed = process.env.FUZZ_SECONDS === undefined ? { seed: 1 } : {}
const options = { ...seed, numRuns: 1_000_000, interruptAfterTimeLimit: limitMs }

describe.each(Object.entries(fuzzTargets))('%s', (name, run) => {
  const seeds = readSeeds(name)

  it('accepts its seeds', () => {
    expect(seeds.length).toBeGreaterThan(0)
    for (const seed of seeds) run(seed)
  })

  it('accepts changes of them', { timeout: 4 * limitMs + 10_000 }, () => {
    const { counterexample, errorInstance } = fc.check(fc.property(mutateBytes(seeds), run), options)
    if (counterexample === null) return
    // Vitest would print every byte.
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-fuzz-')), name)
    writeFileSync(file, counterexample[0])
    throw new Error(`fails with the bytes in ${file}`, { cause: errorInstance })
  })
})

it('decoders accept objects with any value in any field', { timeout: 4 * limitMs + 10_000 }, () => {
  const seeds = readSeeds('objects').map((seed) => JSON.parse(seed.toString('utf8')) as unknown)
  const property = fc.property(mutateJson(seeds), (json) => {
    for (const decode of [decodeService, decodeEndpointSlice, decodeNode, decodeServiceCidr]) {
      const { problems } = decode(json)
      expect(problems.length).toBeLessThanOrEqual(21)
      for (const { message } of problems) expect(message.length).toBeLessThan(1_000)
    }
  })
  fc.assert(property, options)
})
