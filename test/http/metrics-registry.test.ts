import { describe, expect, it } from 'vitest'
import { MetricsRegistry } from '../../src/http/registry/metrics-registry.ts'
import { counter, gauge, histogram } from '../../src/lib/metric-declaration.ts'

const make = () =>
  new MetricsRegistry([
    counter('changes_total', ['kind'], 'Changes.'),
    gauge('size', [], 'Size.'),
    histogram('duration_seconds', [], 'Duration.'),
  ])

const valuesOf = async (registry: MetricsRegistry): Promise<readonly string[]> =>
  (await registry.text()).split('\n').filter((line) => /^(changes_total|size|duration_seconds_count)\b/.test(line))

describe('the text of a registry', () => {
  it('has every change since the last scrape, of each kind', async () => {
    const registry = make()
    registry.add('changes_total', { kind: 'a' })
    registry.set('size', {}, 1)
    registry.observe('duration_seconds', {}, 1)
    expect(await valuesOf(registry)).toEqual(['changes_total{kind="a"} 1', 'size 1', 'duration_seconds_count 1'])
    registry.add('changes_total', { kind: 'a' }, 2)
    registry.set('size', {}, 5)
    registry.observe('duration_seconds', {}, 1)
    expect(await valuesOf(registry)).toEqual(['changes_total{kind="a"} 3', 'size 5', 'duration_seconds_count 2'])
    registry.replace('changes_total', [[{ kind: 'b' }, 7]])
    expect(await valuesOf(registry)).toEqual(['changes_total{kind="b"} 7', 'size 5', 'duration_seconds_count 2'])
  })

  it('has what was buffered', async () => {
    const registry = make()
    const size = registry.series('size', {})
    const observe = registry.bufferedHistogram('duration_seconds', {})
    await registry.text()
    size.set(3)
    observe(1)
    expect(await valuesOf(registry)).toEqual(['size 3', 'duration_seconds_count 1'])
  })

  it('has a change that comes while a text is made in the next text', async () => {
    const registry = make()
    registry.set('size', {}, 1)
    const first = registry.text()
    registry.set('size', {}, 2)
    await first
    expect(await valuesOf(registry)).toEqual(['size 2', 'duration_seconds_count 0'])
  })

  it('has the same lines for two scrapes at once, and none of the values before a reset', async () => {
    const registry = make()
    registry.set('size', {}, 1)
    const [one, two] = await Promise.all([registry.text(), registry.text()])
    expect(one).toBe(two)
    registry.reset()
    expect(await valuesOf(registry)).toEqual(['size 0'])
  })
})
