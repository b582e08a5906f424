// Checks the history over random histories: the difference between any two syncs equals the comparison of the two full states.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { History } from '../../../src/engine/history/history.ts'
import { HistoryRecorder } from '../../../src/engine/history/history-recorder.ts'
import { HistoryRing } from '../../../src/engine/history/history-ring.ts'
import {
  compareParts,
  compareSlices,
  listServiceParts,
  listSliceParts,
} from '../../../src/engine/history/object-changes.ts'
import type { EndpointRecord, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { EngineHarness, endpoint, service, slice } from '../engine-harness.ts'

const keys = ['ns/a', 'ns/b', 'ns/c'] as const
const key = fc.constantFrom(...keys)
const aService: fc.Arbitrary<ServiceRecord> = fc
  .record({
    key,
    clusterIps: fc.constantFrom(['10.96.0.1'], ['10.96.0.2', 'fd00::2'], ['10.96.0.3']),
    ports: fc.uniqueArray(
      fc.record({
        name: fc.constantFrom('http', 'dns'),
        protocol: fc.constantFrom('tcp' as const, 'udp' as const),
        port: fc.constantFrom(53, 80),
        nodePort: fc.constantFrom(0, 30080),
      }),
      { maxLength: 2, selector: ({ protocol, port }) => `${protocol} ${port}` },
    ),
    externalIps: fc.subarray(['192.0.2.7', '192.0.2.8']),
    sourceRanges: fc.subarray(['10.0.0.0/8', '192.168.0.0/16']),
    externalPolicy: fc.constantFrom('Cluster' as const, 'Local' as const),
    affinitySeconds: fc.constantFrom(0, 10),
  })
  .map(({ key: of, ...patch }) => service(of, patch))

/** Each slice has endpoints of its own, so that the state of a service is the union of its slices. */
const endpointsOf = (network: number): fc.Arbitrary<EndpointRecord[]> =>
  fc.uniqueArray(
    fc
      .record({ host: fc.integer({ min: 1, max: 4 }), ready: fc.boolean(), terminating: fc.boolean() })
      .map(({ host, ...patch }) => endpoint(`10.${network}.0.${host}`, patch)),
    { maxLength: 4, selector: ({ ip }) => ip },
  )
const aSlice: fc.Arbitrary<SliceRecord> = fc.constantFrom(1, 2, 3).chain((network) =>
  fc
    .record({
      of: key,
      ports: fc.constantFrom(
        [{ name: 'http', protocol: 'tcp' as const, port: 8080 }],
        [
          { name: 'http', protocol: 'tcp' as const, port: 8080 },
          { name: 'dns', protocol: 'udp' as const, port: 53 },
        ],
      ),
      endpoints: endpointsOf(network),
    })
    .map(({ of, ports, endpoints }) => slice(of, [], { key: `ns/s${network}`, ports, endpoints })),
)
const aStep = fc.oneof(
  { weight: 4, arbitrary: aService.map((record) => ({ put: record })) },
  { weight: 5, arbitrary: aSlice.map((record) => ({ put: record })) },
  { weight: 1, arbitrary: key.map((dropService) => ({ dropService })) },
  { weight: 1, arbitrary: fc.constantFrom('ns/s1', 'ns/s2', 'ns/s3').map((dropSlice) => ({ dropSlice })) },
  { weight: 1, arbitrary: fc.nat().map((tamper) => ({ tamper })) },
)
type Step = typeof aStep extends fc.Arbitrary<infer S> ? S : never

interface State {
  readonly sync: number
  readonly parts: ReadonlyMap<string, string>
  readonly kernel: Readonly<Record<string, string>>
}

/** Runs the steps, and returns the full state after each. */
async function play(steps: readonly (readonly Step[])[]) {
  const harness = new EngineHarness()
  const history = new History({ maxRecords: 1000, maxBytes: 1 << 24 })
  const waited = new History({ maxRecords: 1000, maxBytes: 1 << 24 }, () => later.recordWaiting())
  let sync = 0
  harness.journal.subscribe({ report: () => void sync++ })
  const recorder = new HistoryRecorder({
    delivered: () => undefined,
    describeStart: () => '',
    onRecord: (record) => history.add(JSON.stringify(record)),
  })
  harness.journal.subscribe(recorder)
  const later: HistoryRecorder = new HistoryRecorder({
    delivered: () => undefined,
    describeStart: () => '',
    onRecord: (record) => waited.add(JSON.stringify(record)),
    mayWait: true,
  })
  harness.journal.subscribe(later)
  await harness.synced()
  const states: State[] = [readState(harness, sync)]
  for (const group of steps) {
    for (const step of group) apply(harness, step)
    await harness.tick()
    await harness.tick()
    states.push(readState(harness, sync))
  }
  await harness.engine.stop()
  return { history, waited, states }
}

function apply({ services, slices, kernel }: EngineHarness, step: Step): void {
  if ('put' in step) {
    if ('service' in step.put) slices.put(step.put.key, step.put)
    else services.put(step.put.key, step.put)
  } else if ('dropService' in step) services.drop(step.dropService)
  else if ('dropSlice' in step) slices.drop(step.dropSlice)
  else {
    const ids = kernel.ids()
    const id = ids[step.tamper % ids.length]
    if (id !== undefined) kernel.tamper(id, step.tamper % 2 === 0 ? undefined : 'tampered')
  }
}

function readState({ engine, kernel }: EngineHarness, sync: number): State {
  const parts = new Map<string, string>()
  const { store } = engine
  for (const record of store.records()) {
    for (const [part, value] of listServiceParts(record)) parts.set(`${record.key}|${part}`, value)
  }
  for (const slices of store.allSlices(4)) {
    for (const record of slices) {
      for (const [part, value] of listSliceParts(record)) parts.set(`${record.service}|${part}`, value)
    }
  }
  return { sync, parts, kernel: kernel.content() }
}

describe('records that wait', () => {
  it('are those that are made at once', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(aStep, { minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 30 }),
        async (steps) => {
          const { history, waited } = await play(steps)
          const all = { service: '', since: 0, beforeSync: 0, afterSync: 0, limit: 1000 }
          expect(waited.list(all)).toEqual(history.list(all))
        },
      ),
      { numRuns: 50 },
    )
  })
})

describe('the difference between two syncs', () => {
  it('equals the comparison of the full states', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(aStep, { minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 8 }),
        fc.nat(),
        fc.nat(),
        async (steps, first, second) => {
          const { history, states } = await play(steps)
          const [from, to] = [first % states.length, second % states.length].sort((a, b) => a - b) as [number, number]
          const [before, after] = [states[from] as State, states[to] as State]
          const found = history.compare({ sync: before.sync }, { sync: after.sync }, '')
          expect(found.gaps).toEqual([])
          const parts = found.services.flatMap(({ service: of, parts: own }) =>
            own.map((one) => ({ ...one, part: `${of}|${one.part}` })),
          )
          expect(sortByPart(parts)).toEqual(sortByPart(compareParts(before.parts, after.parts)))
          const written = found.entries.map(({ id, before: was, after: is }) => [id, was !== '', is !== ''])
          expect(written.sort()).toEqual(compareKernels(before.kernel, after.kernel))
        },
      ),
      { numRuns: 150 },
    )
  })
})

const sortByPart = <T extends { readonly part: string }>(parts: readonly T[]): readonly T[] =>
  parts.toSorted((a, b) => (a.part < b.part ? -1 : 1))

const compareKernels = (before: State['kernel'], after: State['kernel']) =>
  [...new Set([...Object.keys(before), ...Object.keys(after)])]
    .filter((id) => before[id] !== after[id])
    .map((id) => [id, before[id] !== undefined, after[id] !== undefined])
    .sort()

describe('the comparison of slices', () => {
  it('passes over equal endpoints at both ends without a different result', () => {
    fc.assert(
      fc.property(endpointsOf(1), endpointsOf(1), (before, after) => {
        const shared = after.map((one) => before.find((old) => JSON.stringify(old) === JSON.stringify(one)) ?? one)
        const [a, b] = [slice('ns/a', [], { endpoints: before }), slice('ns/a', [], { endpoints: shared })]
        const whole = compareParts(listSliceParts(a), listSliceParts(b))
        expect(sortByPart(compareSlices(a, b).parts)).toEqual(sortByPart(whole))
      }),
    )
  })
})

describe('the ring', () => {
  it('stays within both bounds, and keeps the newest lines', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 0, max: 40 }), { maxLength: 3000 }),
        fc.integer({ min: 1, max: 50 }),
        fc.integer({ min: 1, max: 500 }),
        (lengths, maxRecords, maxBytes) => {
          const ring = new HistoryRing({ maxRecords, maxBytes })
          const lines = lengths.map((length, i) => JSON.stringify({ sync: i, text: 'x'.repeat(length) }))
          for (const line of lines) {
            ring.push(line)
            expect(ring.size).toBeLessThanOrEqual(maxRecords)
            expect(ring.bytes).toBeLessThanOrEqual(maxBytes)
          }
          const kept = [...ring.newestFirst()].map(({ sync }) => sync)
          expect(kept).toEqual(
            lines
              .map((_, i) => i)
              .slice(lines.length - kept.length)
              .reverse(),
          )
          const next = lines[lines.length - kept.length - 1]
          if (next !== undefined && kept.length < maxRecords) expect(ring.bytes + next.length).toBeGreaterThan(maxBytes)
        },
      ),
      { numRuns: 50 },
    )
  })
})
