// Random histories of changes and faults: the sink ends equal to the server, and is told nothing twice.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { until } from '../../support/until.ts'
import { errorLine, FakeApi, type State } from '../fake-api.ts'
import { ReflectorHarness } from '../reflector-harness.ts'
import { hangUp, lines, refuse } from '../script-server.ts'

type Step =
  | { readonly do: 'put' | 'remove'; readonly name: string }
  | { readonly do: 'cut' | 'end' | 'half' | 'bookmark' | 'pause' | 'compact' | 'garbage' | 'expire' | 'fail' }
  | { readonly do: 'refuse'; readonly state: State; readonly code: number }

const name = fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h')
const change = fc.record({ do: fc.constantFrom('put' as const, 'put' as const, 'remove' as const), name })
const drop = fc.record({ do: fc.constantFrom('cut' as const, 'end' as const, 'half' as const) })
const calm = fc.record({ do: fc.constantFrom('bookmark' as const, 'pause' as const, 'pause' as const) })
const trouble = fc.record({
  do: fc.constantFrom('compact' as const, 'garbage' as const, 'expire' as const, 'fail' as const),
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
    case 'garbage':
      return api.send('}{\n')
    case 'expire':
      api.compact()
      return api.send(errorLine(410, 'Expired'))
    case 'fail':
      return api.send(errorLine(500, 'InternalError'))
    case 'refuse': {
      const answer = step.code === 0 ? hangUp : step.code === 1 ? lines(['{"type":"AD'], 'cut') : refuse(step.code, 'x')
      api.faults.push({ state: step.state, answer })
    }
  }
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
    // Whatever was on its way has come, and it still agrees.
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
  it('ends in agreement, and tells nothing twice', async () => {
    const steps = fc.array(fc.oneof({ weight: 5, arbitrary: change }, drop, calm, trouble, refusal), { maxLength: 40 })
    await fc.assert(
      fc.asyncProperty(steps, fc.boolean(), async (history, watchList) => {
        const { made } = await play(history as Step[], watchList)
        expect(made.duplicates).toEqual([])
        expect(made.told.filter((line) => line === 'synced')).toHaveLength(1)
      }),
      { numRuns: 60 },
    )
  })

  it('loses not even a passing change when only connections break', async () => {
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
          const start = made.told.length
          for (const step of history as Step[]) {
            const known = step.do === 'remove' && api.objects.has(`ns/${step.name}`)
            await take(api, step)
            if (step.do === 'put') expected.push(`put ns/${step.name}=${api.version}`)
            if (known) expected.push(`drop ns/${(step as { name: string }).name}`)
          }
          await until('all of it', () => made.told.length >= start + expected.length)
          expect(made.told.slice(start)).toEqual(expected)
        } finally {
          await made.stop()
          await api.server.stop()
        }
      }),
      { numRuns: 30 },
    )
  })
})
