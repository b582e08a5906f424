// Random histories of changes and faults: at the end the sink equals the server, and no change came twice.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { until } from '../../support/until.ts'
import { errorLine, FakeApi, type State } from '../fake-api.ts'
import { ReflectorHarness } from '../reflector-harness.ts'
import { type Answer, hangUp, lines, refuse } from '../script-server.ts'

type Step =
  | { readonly do: 'put' | 'remove'; readonly name: string }
  | { readonly do: 'cut' | 'end' | 'half' | 'bookmark' | 'pause' | 'compact' | 'malformed' | 'expire' | 'fail' }
  | { readonly do: 'refuse'; readonly state: State; readonly code: number }

const name = fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h')
const change = fc.record({ do: fc.constantFrom('put' as const, 'put' as const, 'remove' as const), name })
const drop = fc.record({ do: fc.constantFrom('cut' as const, 'end' as const, 'half' as const) })
const calm = fc.record({ do: fc.constantFrom('bookmark' as const, 'pause' as const, 'pause' as const) })
const trouble = fc.record({
  do: fc.constantFrom('compact' as const, 'malformed' as const, 'expire' as const, 'fail' as const),
})
const refusal = fc.record({
  do: fc.constant('refuse' as const),
  state: fc.constantFrom<State>('watchlist', 'list', 'page', 'watch'),
  code: fc.constantFrom(0, 1, 401, 403, 410, 422, 429, 500, 504),
})

function take(api: FakeApi, step: Step): Promise<void> | void {
  switch (step.do) {
    case 'put':
      api.put(step.name)
      return
    case 'remove':
      return api.remove(step.name)
    case 'cut':
    case 'end':
      return api.endWatches(step.do)
    case 'half':
      api.send('{"type":"MODIFIED","object":{"metadata":{"namespace":"ns","na')
      return new Promise((resolve) =>
        setImmediate(() => {
          api.endWatches('cut')
          resolve()
        }),
      )
    case 'bookmark':
      return api.bookmark()
    case 'pause':
      return new Promise((resolve) => setTimeout(resolve, 8))
    case 'compact':
      return api.compact()
    case 'malformed':
      return api.send('}{\n')
    case 'expire':
      api.compact()
      return api.send(errorLine(410, 'Expired'))
    case 'fail':
      return api.send(errorLine(500, 'InternalError'))
    case 'refuse': {
      api.faults.push({ state: step.state, answer: answerOf(step.code) })
    }
  }
}

/** 0 hangs up, 1 cuts a line in half, any other code is an HTTP status. */
function answerOf(code: number): Answer {
  if (code === 0) return hangUp
  return code === 1 ? lines(['{"type":"AD'], 'cut') : refuse(code, 'x')
}

async function play(steps: readonly Step[], watchList: boolean): Promise<{ api: FakeApi; made: ReflectorHarness }> {
  const api = new FakeApi()
  for (const first of ['a', 'b', 'c', 'd']) api.put(first)
  api.watchList = watchList
  await api.server.start()
  const made = new ReflectorHarness(api.server.url, 200)
  try {
    for (const step of steps) await take(api, step)
    api.faults.length = 0
    await until('the sink equals the server', () => made.synced === 1 && made.equals(api.objects))
    // Every change that was in transit has arrived, and the sink still equals the server.
    await until('a watch', () => api.watchers > 0)
    api.put('last')
    await until('the last change', () => made.equals(api.objects))
  } finally {
    await made.stop()
    await api.server.stop()
  }
  return { api, made }
}

describe('any history', () => {
  it('ends with the sink equal to the server, and delivers no change twice', async () => {
    const steps = fc.array(fc.oneof({ weight: 5, arbitrary: change }, drop, calm, trouble, refusal), { maxLength: 40 })
    await fc.assert(
      fc.asyncProperty(steps, fc.boolean(), async (history, watchList) => {
        const { made } = await play(history as Step[], watchList)
        expect(made.duplicates).toEqual([])
        expect(made.calls.filter((line) => line === 'synced')).toHaveLength(1)
      }),
      { numRuns: 60 },
    )
  })

  it('loses not even a short-lived change when only connections break', async () => {
    const steps = fc.array(fc.oneof({ weight: 4, arbitrary: change }, drop, calm), { maxLength: 40 })
    await fc.assert(
      fc.asyncProperty(steps, fc.boolean(), async (history, watchList) => {
        const expected: string[] = []
        const api = new FakeApi()
        for (const first of ['a', 'b', 'c', 'd']) api.put(first)
        api.watchList = watchList
        await api.server.start()
        const made = new ReflectorHarness(api.server.url, 200)
        try {
          await until('synced', () => made.synced === 1)
          const start = made.calls.length
          for (const step of history as Step[]) {
            const known = step.do === 'remove' && api.objects.has(`ns/${step.name}`)
            await take(api, step)
            if (step.do === 'put') expected.push(`put ns/${step.name}=${api.version}`)
            if (known) expected.push(`drop ns/${(step as { name: string }).name}`)
          }
          await until('all of it', () => made.calls.length >= start + expected.length)
          expect(made.calls.slice(start)).toEqual(expected)
        } finally {
          await made.stop()
          await api.server.stop()
        }
      }),
      { numRuns: 30 },
    )
  })
})
