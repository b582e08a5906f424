// Checks that docs/metrics.md equals the declarations.

import { join } from 'node:path'
import { expect, it } from 'vitest'
import { formatMetricDocs } from '../../src/http/metric-table.ts'
import { bucketSets } from '../../src/lib/metric-declaration.ts'

it('docs/metrics.md is up to date', async () => {
  await expect(formatMetricDocs()).toMatchFileSnapshot(join(import.meta.dirname, '..', '..', 'docs', 'metrics.md'))
})

it('has upstream’s buckets', () => {
  expect(bucketSets.EXP).toEqual([
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
  ])
  expect(bucketSets.NPL).toHaveLength(2 + 59 + 12 + 7)
  expect(bucketSets.NPL.slice(0, 4)).toEqual([0.25, 0.5, 1, 2])
  expect(bucketSets.NPL.slice(58, 64)).toEqual([57, 58, 59, 60, 65, 70])
  expect(bucketSets.NPL.slice(-9)).toEqual([110, 115, 120, 150, 180, 210, 240, 270, 300])
})
