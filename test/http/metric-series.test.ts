// Compares the texts of metrics with those that prom-client writes for the same changes.

import { Counter, Gauge, Histogram, Registry } from 'prom-client'
import { describe, expect, it } from 'vitest'
import { HistogramMetric, NumberMetric } from '../../src/http/registry/metric-series.ts'

const labels = ['kind', 'family']
const help = 'Help with a \\ and\na line.'
const bounds = [0.001, 0.25, 1, 16_384]

const pairs = [
  {},
  { kind: 'a', family: 'IPv4' },
  { family: 'IPv4', kind: 'b' },
  { kind: 'a "quoted" \\ value\n', family: 'IPv6' },
  { kind: 'a' },
]

const declare = (name: string, type: 'counter' | 'gauge' | 'histogram', labelled: readonly string[]) => ({
  name,
  type,
  labels: labelled,
  help,
})

async function expectEqual(registry: Registry, metric: { text(): string }): Promise<void> {
  expect(`${metric.text()}\n`).toBe((await registry.metrics()).replace(/ Nan$/gm, ' NaN'))
}

describe('the text of a metric', () => {
  it.each([[[]], [labels]])('is that of prom-client for a counter with the labels %j', async (labelled) => {
    const registry = new Registry()
    const theirs = new Counter({ name: 'c_total', help, labelNames: labelled, registers: [registry] })
    const ours = new NumberMetric(declare('c_total', 'counter', labelled))
    await expectEqual(registry, ours)
    for (const [i, given] of [...pairs, ...pairs].entries()) {
      if (labelled.length === 0 && Object.keys(given).length > 0) continue
      theirs.inc(given, i + 0.5)
      ours.add(given, i + 0.5)
      await expectEqual(registry, ours)
    }
    theirs.reset()
    ours.reset()
    await expectEqual(registry, ours)
  })

  it.each([[[]], [labels]])('is that of prom-client for a gauge with the labels %j', async (labelled) => {
    const registry = new Registry()
    const theirs = new Gauge({ name: 'g', help, labelNames: labelled, registers: [registry] })
    const ours = new NumberMetric(declare('g', 'gauge', labelled))
    await expectEqual(registry, ours)
    const values = [0, 1, 1, -2.5, 1e21, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN, Number.NaN, 7]
    for (const value of values) {
      for (const given of labelled.length === 0 ? [{}] : pairs) {
        theirs.set(given, value)
        ours.set(given, value)
        await expectEqual(registry, ours)
      }
    }
  })

  it.each([[[]], [labels]])('is that of prom-client for a histogram with the labels %j', async (labelled) => {
    const registry = new Registry()
    const theirs = new Histogram({ name: 'h', help, labelNames: labelled, buckets: bounds, registers: [registry] })
    const ours = new HistogramMetric(declare('h', 'histogram', labelled), bounds)
    await expectEqual(registry, ours)
    for (const value of [0, 0.001, 0.0011, 1, 20_000, 3]) {
      for (const given of labelled.length === 0 ? [{}] : pairs) {
        theirs.observe(given, value)
        ours.observe(given, value)
        await expectEqual(registry, ours)
      }
    }
    theirs.reset()
    ours.reset()
    await expectEqual(registry, ours)
  })

  it('is that of prom-client when all series are replaced', async () => {
    const registry = new Registry()
    const theirs = new Counter({ name: 'c_total', help, labelNames: labels, registers: [registry] })
    const ours = new NumberMetric(declare('c_total', 'counter', labels))
    for (const given of [pairs.slice(1, 3), pairs.slice(2), [...pairs.slice(2), ...pairs.slice(1)], []]) {
      theirs.reset()
      for (const [i, one] of given.entries()) theirs.inc(one, i)
      ours.replace(given.map((one, i) => [one, i]))
      await expectEqual(registry, ours)
    }
  })
})

it('refuses a label that was not declared', () => {
  const metric = new NumberMetric(declare('c_total', 'counter', labels))
  expect(() => metric.add({ other: 'x' }, 1)).toThrow('the metric c_total has no label other')
})
