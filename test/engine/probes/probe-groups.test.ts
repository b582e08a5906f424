// Which endpoints are probed, and what the results mean.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { EjectionFilter } from '../../../src/engine/outliers/ejection-filter.ts'
import { OutlierDetector } from '../../../src/engine/outliers/outlier-detector.ts'
import { ProbeGroups, type ProbeSettings, unusedMs } from '../../../src/engine/probes/probe-groups.ts'
import { ProbeJudge } from '../../../src/engine/probes/probe-judge.ts'
import { resolvePorts } from '../../../src/model/resolve.ts'
import { service, slice, view } from '../engine-harness.ts'

const settings: ProbeSettings = {
  ...{ intervalMs: 10_000, timeoutMs: 1_000, failures: 3, successes: 1, perSecond: 100, atOnce: 10 },
  always: false,
  random: () => 0,
}
const tcp = { kind: 'tcp', target: '' } as const

function makeGroups(given: Partial<ProbeSettings> = {}) {
  const verdicts: Record<string, string | undefined> = {}
  const groups = new ProbeGroups({ ...settings, ...given }, (group, endpoint, why) => {
    verdicts[`${group} ${endpoint}`] = why
  })
  return { groups, verdicts }
}

describe('a group', () => {
  it('is probed only while this node uses it', () => {
    const { groups } = makeGroups()
    groups.set('g', tcp, ['a', 'b'], 0)
    expect([groups.start(20_000), groups.waitMs(20_000)]).toEqual([[], undefined])
    groups.use('g', 20_000)
    expect(groups.start(20_000).map(({ endpoint }) => endpoint)).toEqual(['a', 'b'])
    groups.expire(20_000 + unusedMs - 1)
    expect(groups.size).toBe(2)
    groups.expire(20_000 + unusedMs)
    expect([groups.size, groups.start(1_000_000)]).toEqual([0, []])
  })

  it('is probed always if every node probes', () => {
    const { groups } = makeGroups({ always: true })
    groups.set('g', tcp, ['a'], 0)
    groups.expire(10 * unusedMs)
    expect(groups.start(10 * unusedMs).map(({ endpoint }) => endpoint)).toEqual(['a'])
  })

  it('takes what the annotation leaves out from the configuration, and a probe ends before the next one', () => {
    const { groups } = makeGroups({ always: true })
    groups.set('g', { kind: 'http', target: '/', intervalMs: 2_000, timeoutMs: 9_000, failures: 7 }, ['a'], 0)
    expect(groups.start(0)[0]?.plan).toEqual({
      ...{ kind: 'http', target: '/', intervalMs: 2_000, timeoutMs: 2_000, failures: 7, successes: 1 },
    })
  })

  it('loses the verdict of an endpoint that is gone, and of all if the probe changes', () => {
    const { groups, verdicts } = makeGroups({ always: true, failures: 1 })
    const failAll = (now: number) => {
      for (const { id } of groups.start(now)) groups.end(id, { failure: 'connection refused' }, now)
    }
    groups.set('g', tcp, ['a', 'b'], 0)
    failAll(0)
    expect(verdicts).toEqual({ 'g a': expect.any(String), 'g b': expect.any(String) })
    groups.set('g', tcp, ['b'], 1)
    expect(verdicts).toEqual({ 'g a': undefined, 'g b': expect.any(String) })
    groups.set('g', { ...tcp, kind: 'grpc' }, ['b'], 1)
    expect(verdicts).toEqual({ 'g a': undefined, 'g b': undefined })
    failAll(5)
    groups.drop('g')
    expect([verdicts['g b'], groups.isIdle]).toEqual([undefined, true])
  })

  it('a result that is not known changes nothing', () => {
    const { groups, verdicts } = makeGroups({ always: true, failures: 1 })
    groups.set('g', tcp, ['a'], 0)
    for (const { id } of groups.start(0)) groups.end(id, 'unknown', 0)
    expect(verdicts).toEqual({})
  })
})

describe('the verdict', () => {
  it('needs failures in a row, keeps its words, and ends after successes in a row', () => {
    const judge = new ProbeJudge({ failures: 3, successes: 2 })
    const noteAll = (...results: readonly (string | undefined)[]) => {
      for (const result of results) judge.note(result)
      return judge.verdict
    }
    expect(noteAll('connection refused', 'connection refused', undefined, 'connection refused')).toBeUndefined()
    expect(noteAll('connection refused', 'connection refused')).toBe('probe: connection refused 3 times')
    expect(noteAll('no answer within 1000 ms')).toBe('probe: connection refused 3 times')
    expect(noteAll(undefined, 'connection refused', undefined)).toBe('probe: connection refused 3 times')
    expect(noteAll(undefined)).toBeUndefined()
  })

  it('is there exactly if the last row of results of one kind that was long enough was of failures', () => {
    const bounds = fc.record({ failures: fc.integer({ min: 1, max: 4 }), successes: fc.integer({ min: 1, max: 4 }) })
    fc.assert(
      fc.property(bounds, fc.array(fc.boolean(), { maxLength: 40 }), (thresholds, results) => {
        const judge = new ProbeJudge(thresholds)
        let [expected, row] = [false, 0]
        for (const [i, isFailure] of results.entries()) {
          row = results[i - 1] === isFailure ? row + 1 : 1
          if (row >= (isFailure ? thresholds.failures : thresholds.successes)) expected = isFailure
          judge.note(isFailure ? 'x' : undefined)
          expect(judge.verdict !== undefined).toBe(expected)
        }
      }),
    )
  })
})

describe('an endpoint whose probes fail', () => {
  const ips = ['10.1.0.1', '10.1.0.2', '10.1.0.3', '10.1.0.4']
  const probing = (more: object = {}) => service('ns/web', { probe: { ...tcp, ...more } })

  function makeFilter() {
    const detector = new OutlierDetector({ failures: 1, maxShare: 0.5, intervalMs: 10_000, maxIntervalMs: 300_000 })
    const { groups } = makeGroups({ always: true })
    const filter = new EjectionFilter(detector, {
      isDefault: () => false,
      onWatched: () => {},
      probes: {
        set: (id, probe, endpoints) => groups.set(id, probe, endpoints, 0),
        drop: (id) => groups.drop(id),
      },
    })
    const resolve = filter.wrap(resolvePorts)
    const portOf = (record = probing()) => [...resolve(record, [slice('ns/web', ips)], view(4))][0]
    return { detector, groups, portOf }
  }

  it('is left out with the reason of the probe, by the same bounds, until the verdict ends', () => {
    const { detector, portOf } = makeFilter()
    portOf()
    const id = detector.groupsOf('10.1.0.1:8080')[Symbol.iterator]().next().value as string
    detector.setVerdict(id, '10.1.0.2:8080', 'probe: connection refused 3 times')
    expect(detector.decide(100_000)).toEqual([id])
    expect(portOf()?.ejected).toEqual([{ address: '10.1.0.2:8080', why: 'probe: connection refused 3 times' }])
    detector.setVerdict(id, '10.1.0.3:8080', 'probe: connection refused 3 times')
    detector.decide(100_200)
    expect(portOf()?.cluster.map(({ ip }) => ip)).toEqual(['10.1.0.1', '10.1.0.4'])
    detector.setVerdict(id, '10.1.0.1:8080', 'probe: connection refused 3 times')
    detector.decide(100_400)
    expect([portOf()?.cluster.length, portOf()?.ejected]).toEqual([4, undefined])
    for (const ip of ips) detector.setVerdict(id, `${ip}:8080`, undefined)
    detector.setVerdict(id, '10.1.0.4:8080', 'probe: HTTP 503 Service Unavailable 3 times')
    detector.decide(100_600)
    expect(portOf()?.cluster.map(({ ip }) => ip)).toEqual(['10.1.0.1', '10.1.0.2', '10.1.0.3'])
  })

  it('is not left out by failed connections unless the service wants that, too', () => {
    const { detector, portOf } = makeFilter()
    portOf()
    detector.answered('10.1.0.4:8080', 5_000)
    detector.failed('10.1.0.2:8080', 'refused', 5_000)
    expect(detector.decide(5_000)).toEqual([])
  })

  it('only the port that the annotation names is probed', () => {
    const { groups, portOf } = makeFilter()
    portOf(probing({ port: 'other' }))
    expect(groups.isIdle).toBe(true)
    const name = portOf()?.portName as string
    portOf(probing({ port: name }))
    expect(groups.size).toBe(4)
  })
})
