import { afterEach, describe, expect, it } from 'vitest'
import type { ReflectorOptions } from '../../../src/kube/reflect/reflector.ts'
import { createLogger } from '../../../src/lib/log.ts'
import { fastClock } from '../../support/fast-clock.ts'
import { until } from '../../support/until.ts'
import { bookmark, errorLine, FakeApi, type FakeObject, type State } from '../fake-api.ts'
import { ReflectorHarness } from '../reflector-harness.ts'
import { type Answer, clientTo, connectionTo, hang, hangUp, json, lines, refuse } from '../script-server.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

async function fake(...names: string[]): Promise<FakeApi> {
  const api = new FakeApi()
  for (const name of names) api.put(name)
  await api.server.start()
  cleanups.push(() => api.server.stop())
  return api
}

function harness(api: FakeApi, factor?: number, more?: Partial<ReflectorOptions<number>>): ReflectorHarness {
  const made = new ReflectorHarness(api.server.url, factor, more)
  cleanups.push(() => made.stop())
  return made
}

const agree = (api: FakeApi, made: ReflectorHarness, what = 'the sink equals the server') =>
  until(what, () => made.synced === 1 && made.equals(api.objects))

const stateNames = (api: FakeApi) => api.states.map((entry) => entry.state)

describe('with WatchList', () => {
  it('reads snapshot and changes on one connection', async () => {
    const api = await fake('a', 'b')
    const made = harness(api, 10, { labelSelector: '!x', fieldSelector: 'a!=b' })
    await agree(api, made)
    expect(made.calls).toEqual(['put ns/a=101', 'put ns/b=102', 'synced'])
    api.put('c')
    api.remove('a')
    api.put('b')
    await agree(api, made)
    expect(made.calls.slice(3)).toEqual(['put ns/c=103', 'drop ns/a', 'put ns/b=105'])
    expect(api.states).toHaveLength(1)
    const query = Object.fromEntries(api.states[0]?.seen.query ?? [])
    const timeout = Number(query.timeoutSeconds)
    expect(timeout).toBeGreaterThanOrEqual(300)
    expect(timeout).toBeLessThanOrEqual(600)
    expect(query).toEqual({
      watch: 'true',
      sendInitialEvents: 'true',
      resourceVersionMatch: 'NotOlderThan',
      allowWatchBookmarks: 'true',
      labelSelector: '!x',
      fieldSelector: 'a!=b',
      timeoutSeconds: String(timeout),
    })
    expect(made.reflector.status()).toMatchObject({
      synced: true,
      connected: true,
      objects: 2,
      resourceVersion: '105',
      error: '',
    })
  })

  it('also syncs an empty collection', async () => {
    const made = harness(await fake())
    await until('synced', () => made.synced === 1)
    expect(made.calls).toEqual(['synced'])
  })

  it('accepts live changes among the initial events, before the snapshot ends', async () => {
    const api = await fake()
    const event = (type: string, name: string, version: number) => ({
      type,
      object: { metadata: { namespace: 'ns', name, resourceVersion: String(version) }, value: version },
    })
    const parts = [
      event('ADDED', 'a', 5),
      event('ADDED', 'b', 9),
      event('DELETED', 'a', 11),
      event('MODIFIED', 'b', 12),
    ]
    api.faults.push({ state: 'watchlist', answer: lines([...parts, bookmark(12, true)], 'open') })
    const made = harness(api)
    await until('synced', () => made.synced === 1)
    expect(made.calls).toEqual(['put ns/a=5', 'put ns/b=9', 'drop ns/a', 'put ns/b=12', 'synced'])
  })

  it('continues at the last bookmark when the server ends the watch', async () => {
    const api = await fake('a')
    const made = harness(api)
    await agree(api, made)
    api.version = 500
    api.bookmark()
    await until('the bookmark', () => made.reflector.status().resourceVersion === '500')
    await new Promise((resolve) => setTimeout(resolve, 20))
    api.endWatches('end')
    await until('the next watch', () => api.states.length === 2)
    expect(api.states[1]?.seen.query.get('resourceVersion')).toBe('500')
    expect(api.states[1]?.seen.query.get('sendInitialEvents')).toBeNull()
    expect(made.calls).toEqual(['put ns/a=101', 'synced'])
  })

  it.each([400, 405, 422, 501])(
    'reads pages from a server that refuses WatchList with %i, and does not try it again',
    async (code) => {
      const api = await fake('a', 'b', 'c', 'd', 'e', 'f', 'g')
      api.faults.push({ state: 'watchlist', answer: refuse(code, 'Invalid', 'sendInitialEvents is forbidden') })
      const made = harness(api)
      await agree(api, made)
      await until('a watch', () => api.watchers === 1)
      expect(stateNames(api)).toEqual(['watchlist', 'list', 'page', 'page', 'watch'])
      expect(api.states[1]?.seen.query.get('limit')).toBe('250')
      expect(api.states[4]?.seen.query.get('resourceVersion')).toBe('107')
      api.compact()
      api.send(errorLine(410, 'Expired'))
      await until('a second list', () => stateNames(api).filter((state) => state === 'watch').length === 2)
      expect(stateNames(api).filter((state) => state === 'watchlist')).toHaveLength(1)
      expect(made.duplicates).toEqual([])
    },
  )

  it('reads pages when the end of the snapshot never comes, and delivers nothing twice', async () => {
    const api = await fake('a', 'b')
    const objects = [...api.objects.values()].map((object) => ({ type: 'ADDED', object }))
    api.faults.push({ state: 'watchlist', answer: lines(objects, 'open') })
    const made = harness(api)
    await agree(api, made)
    await until('a watch', () => api.watchers === 1)
    expect(stateNames(api)).toEqual(['watchlist', 'list', 'watch'])
    expect(made.calls).toEqual(['put ns/a=101', 'put ns/b=102', 'synced'])
  })

  it('keeps streaming from a server that has streamed before and is silent in the middle of a snapshot', async () => {
    const api = await fake('a', 'b')
    const made = harness(api)
    await agree(api, made)
    await until('a watch', () => api.watchers === 1)
    api.faults.push({ state: 'watchlist', answer: lines([], 'open') })
    api.endWatches('cut')
    api.put('c')
    api.compact()
    await agree(api, made)
    expect(stateNames(api)).toEqual(['watchlist', 'watch', 'watchlist', 'watchlist'])
    expect(made.duplicates).toEqual([])
  })

  it('reads pages from a server that answers a watch with a list', async () => {
    const api = await fake('a')
    api.faults.push({ state: 'watchlist', answer: lines([{ kind: 'List', items: [] }], 'open') })
    const made = harness(api)
    await agree(api, made)
    expect(made.problems).toHaveLength(1)
  })
})

describe('in pages', () => {
  it('reads a list again in larger pages when the pages expire', async () => {
    const api = await fake('a', 'b', 'c', 'd', 'e')
    api.watchList = false
    api.faults.push({
      state: 'page',
      answer: (response, seen) => {
        api.remove('a')
        api.put('f')
        api.compact()
        refuse(410, 'Expired', 'The provided continue parameter is too old')(response, seen)
      },
    })
    const made = harness(api)
    await agree(api, made)
    expect(stateNames(api).slice(0, 4)).toEqual(['watchlist', 'list', 'page', 'list'])
    expect(api.states[3]?.seen.query.get('limit')).toBe('2000')
    expect(made.calls).toContain('drop ns/a')
    expect(made.duplicates).toEqual([])
  })

  it('starts again when a page is not a list', async () => {
    const api = await fake('a', 'b', 'c', 'd')
    api.watchList = false
    api.faults.push({ state: 'page', answer: json({ hello: 1 }) })
    const made = harness(api)
    await agree(api, made)
    expect(made.problems).toHaveLength(1)
    expect(made.duplicates).toEqual([])
  })

  it('reads a large collection page by page', async () => {
    const api = new FakeApi()
    for (let i = 0; i < 3_000; i++) api.put(`object-${i}`)
    api.pageSize = 500
    api.watchList = false
    await api.server.start()
    cleanups.push(() => api.server.stop())
    const made = harness(api, 10)
    await agree(api, made)
    expect(stateNames(api).filter((state) => state === 'list' || state === 'page')).toHaveLength(6)
  })
})

describe('after an interruption', () => {
  it('delivers only the difference of a new snapshot', async () => {
    for (const watchList of [true, false]) {
      const api = await fake('same', 'changed', 'gone')
      api.watchList = watchList
      const made = harness(api)
      await agree(api, made)
      await until('a watch', () => api.watchers === 1)
      const before = made.calls.length
      api.endWatches('cut')
      api.remove('gone')
      api.put('changed')
      api.put('new')
      api.compact()
      await agree(api, made)
      expect(made.calls.slice(before).sort()).toEqual(['drop ns/gone', 'put ns/changed=105', 'put ns/new=106'])
      expect(made.synced).toBe(1)
    }
  })

  it('asks for a snapshot that is not older than the version that expired, and for the newest one after any other failure', async () => {
    const api = await fake('a')
    const made = harness(api)
    await agree(api, made)
    const watchlists = () => api.states.filter(({ state }) => state === 'watchlist')
    const versions = () => watchlists().map(({ seen }) => seen.query.get('resourceVersion'))
    api.endWatches('cut')
    api.put('b')
    api.compact()
    await agree(api, made)
    expect(versions()).toEqual([null, '101'])

    api.faults.push({ state: 'watchlist', answer: refuse(500, 'InternalError', 'x') })
    await until('a watch', () => api.watchers === 1)
    api.endWatches('cut')
    api.put('c')
    api.compact()
    await agree(api, made)
    expect(versions()).toEqual([null, '101', '102', null])
    expect(made.duplicates).toEqual([])
  })

  it('continues at its version although a server that has just started refuses everything', async () => {
    const api = await fake('a')
    const made = harness(api)
    await agree(api, made)
    const refused = refuse(403, 'Forbidden', 'RBAC: roles are not known yet')
    api.faults.push({ state: 'watch', answer: refused }, { state: 'watch', answer: refused })
    api.endWatches('cut')
    api.put('b')
    await agree(api, made)
    expect(stateNames(api)).toEqual(['watchlist', 'watch', 'watch', 'watch'])
  })

  it('does not lose the event whose line was cut in half', async () => {
    const api = await fake('a')
    const made = harness(api)
    await agree(api, made)
    const half = JSON.stringify({ type: 'ADDED', object: { metadata: { namespace: 'ns', name: 'b' } } }).slice(0, 40)
    api.send(half)
    await new Promise((resolve) => setTimeout(resolve, 10))
    api.endWatches('cut')
    api.put('b')
    await agree(api, made)
    expect(made.calls).toEqual(['put ns/a=101', 'synced', 'put ns/b=102'])
    expect(made.problems).toEqual([])
    expect(stateNames(api).filter((state) => state !== 'watch')).toEqual(['watchlist'])
  })

  it.each(['not json', '{"type":"ADDED"}', '{"type":"NEWS","object":{}}', '[]', '"x"', '{"type":"ADDED","object":5}'])(
    'reports the line %s and reads a new snapshot',
    async (line) => {
      const api = await fake('a')
      const made = harness(api)
      await agree(api, made)
      api.send(`${line}\n`)
      await until('a new snapshot', () => stateNames(api).filter((state) => state === 'watchlist').length === 2)
      api.put('b')
      await agree(api, made)
      expect(made.problems).toHaveLength(1)
      expect(made.problems[0]).toMatchObject({ kind: 'Thing', message: expect.stringContaining(JSON.stringify(line)) })
      expect(made.duplicates).toEqual([])
    },
  )

  it('retries a version that is too large, and gives it up after some attempts', async () => {
    const api = await fake('a')
    const made = harness(api)
    await agree(api, made)
    const tooLarge = refuse(504, 'Timeout', 'x', { details: { causes: [{ reason: 'ResourceVersionTooLarge' }] } })
    api.faults.push({ state: 'watch', answer: tooLarge }, { state: 'watch', answer: tooLarge })
    api.endWatches('cut')
    api.put('b')
    await agree(api, made)
    expect(stateNames(api)).toEqual(['watchlist', 'watch', 'watch', 'watch'])

    // A server that was restored from a backup never reaches the version.
    await until('a watch', () => api.watchers === 1)
    for (let i = 0; i < 10; i++) api.faults.push({ state: 'watch', answer: tooLarge })
    api.endWatches('cut')
    api.put('c')
    await agree(api, made)
    expect(stateNames(api).filter((state) => state === 'watchlist')).toHaveLength(2)
  })

  it.each([
    ['410 Expired', errorLine(410, 'Expired'), 'watchlist'],
    ['410 Gone', errorLine(410, 'Gone'), 'watchlist'],
    ['429', errorLine(429, 'TooManyRequests', 'x', { retryAfterSeconds: 5 }), 'watch'],
    ['500', errorLine(500, 'InternalError'), 'watchlist'],
    ['504 too large', errorLine(504, 'Timeout', 'Too large resource version: 9, current: 8'), 'watch'],
    ['403', errorLine(403, 'Forbidden'), 'watch'],
  ])('an ERROR event of %s leads to the right next request', async (_, line, next) => {
    const api = await fake('a')
    const made = harness(api)
    await agree(api, made)
    api.send(line)
    api.put('b')
    await until('the next request', () => api.states.length === 2)
    expect(stateNames(api)[1]).toBe(next)
    await agree(api, made)
    expect(made.duplicates).toEqual([])
    if (_ === '429') expect(made.clock.waits.some((ms) => ms >= 5_000 && ms <= 7_000)).toBe(true)
  })

  it('ends a watch that is silent for longer than requested', async () => {
    const api = await fake('a')
    const made = harness(api, 1_000, { random: () => 0 })
    await agree(api, made)
    await until('another connection', () => stateNames(api).includes('watch'))
    expect(made.clock.waits.some((ms) => ms > 250_000 && ms <= 330_000)).toBe(true)
    api.put('b')
    await agree(api, made)
    expect(made.duplicates).toEqual([])
  })
})

describe('back-off', () => {
  /** Shortens the waits, while for the reflector no time passes and requests have no time limit. */
  function waiting(api: FakeApi, random: number) {
    const clock = fastClock(1_000)
    const client = clientTo(connectionTo(api.server.url))
    cleanups.push(() => client.close())
    const made = harness(api, 1, { client, clock: { ...clock, monotonic: () => 0 }, random: () => random })
    // Without the limits on a silent snapshot and on a silent watch.
    return { made, waits: () => clock.waits.filter((ms) => ms < 30_000) }
  }

  it('waits longer and longer, up to half a minute, and starts again after a success', async () => {
    const api = await fake('a')
    for (let i = 0; i < 8; i++) api.faults.push({ state: 'watchlist', answer: hangUp })
    const { made, waits } = waiting(api, 0.5)
    await agree(api, made)
    expect(waits()).toEqual([800, 2400, 4800, 9600, 19200, 22500, 22500, 22500])
    api.endWatches('cut')
    await until('another wait', () => waits().length > 8)
    expect(waits()[8]).toBe(800)
  })

  it.each([
    [0, 0],
    [1, 1600],
  ])('spreads the requests of many nodes (%d)', async (random, first) => {
    const api = await fake('a')
    api.faults.push({ state: 'watchlist', answer: hangUp })
    const { made, waits } = waiting(api, random)
    await agree(api, made)
    expect(waits()).toEqual([first])
  })

  it('waits between watches that the server ends at once', async () => {
    const api = await fake('a')
    const { made, waits } = waiting(api, 0)
    await agree(api, made)
    for (let i = 0; i < 3; i++) api.faults.push({ state: 'watch', answer: lines([], 'end') })
    api.endWatches('end')
    await until('a watch that stays', () => api.faults.length === 0 && api.watchers === 1)
    expect(waits()).toEqual([0, 1600, 3200, 6400])
  })
})

describe('selectors', () => {
  const unknown: Answer = refuse(400, 'BadRequest', 'field label not supported: spec.clusterIP')

  it.each([true, false])(
    'drops a field selector that the server does not support (WatchList: %s)',
    async (watchList) => {
      const api = await fake('a')
      api.watchList = watchList
      const states: State[] = watchList ? ['watchlist'] : ['list']
      for (const state of states) api.faults.push({ state, answer: unknown })
      const made = harness(api, 100, { fieldSelector: 'spec.clusterIP!=None', fieldSelectorOptional: true })
      await agree(api, made)
      expect(api.states[0]?.seen.query.get('fieldSelector')).toBe('spec.clusterIP!=None')
      expect(api.states.at(-1)?.seen.query.get('fieldSelector')).toBeNull()
      expect(stateNames(api).at(watchList ? -1 : 0)).toBe('watchlist')
    },
  )

  it('keeps a field selector that is required', async () => {
    const api = await fake('a')
    api.faults.push({ state: 'watchlist', answer: unknown }, { state: 'list', answer: unknown })
    const made = harness(api, 100, { fieldSelector: 'metadata.name=n' })
    await agree(api, made)
    expect(api.states.every((entry) => entry.seen.query.get('fieldSelector') === 'metadata.name=n')).toBe(true)
  })
})

describe('objects', () => {
  const set = (api: FakeApi, name: string, value: unknown) => {
    const key = `ns/${name}`
    const type = api.objects.has(key) ? 'MODIFIED' : 'ADDED'
    const metadata = { namespace: 'ns', name, resourceVersion: String(++api.version) }
    api.objects.set(key, { metadata, value } as FakeObject)
    api.send(`${JSON.stringify({ type, object: api.objects.get(key) })}\n`)
  }

  it('drops an object that is ignored from now on, and puts it again later', async () => {
    const api = await fake('a')
    const made = harness(api)
    await agree(api, made)
    set(api, 'a', -1)
    set(api, 'b', -1)
    set(api, 'a', 7)
    await until('the end', () => made.state.get('ns/a') === 7)
    expect(made.calls.slice(2)).toEqual(['drop ns/a', 'put ns/a=7'])
  })

  it('reports an invalid object once per version, and keeps the others', async () => {
    const api = await fake('a')
    set(api, 'bad', 'text')
    api.put('z')
    const made = harness(api)
    await until('all', () => made.synced === 1)
    expect([...made.state.keys()]).toEqual(['ns/a', 'ns/z'])
    api.compact()
    api.send(errorLine(410, 'Expired'))
    await until('a new snapshot', () => api.states.length === 2 && api.watchers > 0)
    set(api, 'c', 9)
    await until('going on', () => made.state.has('ns/c'))
    expect(made.problems).toHaveLength(1)
    set(api, 'bad', 'other text')
    await until('the next version', () => made.problems.length === 2)
    set(api, 'bad', 3)
    await until('its recovery', () => made.state.get('ns/bad') === 3)
    set(api, 'bad', 'broken again')
    await until('its end', () => !made.state.has('ns/bad'))
    expect(made.duplicates).toEqual([])
  })

  it('logs an object that is of no use once at info level, over all its versions, and reports no problem', async () => {
    const api = await fake('a')
    set(api, 'own', 1)
    const logged: string[] = []
    const made = harness(api, 100, {
      log: createLogger({ format: 'text', verbosity: 0, write: (line) => logged.push(line) }),
      decode(json) {
        const { metadata, value } = json as { metadata: { name: string }; value: number }
        const key = `ns/${metadata.name}`
        if (metadata.name === 'own' && value < 4) return { key, record: undefined, problems: [], unused: 'no label' }
        return { key, record: value, problems: [] }
      },
    })
    const remarks = () => logged.filter((line) => line.includes('Ignoring an object'))
    await until('the snapshot', () => made.synced === 1)
    set(api, 'own', 2)
    api.compact()
    api.send(errorLine(410, 'Expired'))
    await until('a new snapshot', () => api.states.length === 2 && api.watchers > 0)
    set(api, 'own', 3)
    set(api, 'own', 4)
    await until('its use', () => made.state.get('ns/own') === 4)
    expect(remarks()).toEqual([expect.stringMatching(/^I.*kind="Thing" object="ns\/own" reason="no label"/)])
    set(api, 'own', 1)
    await until('its end', () => !made.state.has('ns/own'))
    expect(remarks()).toHaveLength(2)
    expect(made.problems).toEqual([])
  })

  it('reports a bug of the decoder as a problem of the object', async () => {
    const api = await fake('a')
    const made = harness(api, 100, {
      decode: () => {
        throw new TypeError('a bug')
      },
    })
    await until('the snapshot', () => made.synced === 1)
    expect(made.problems).toMatchObject([{ object: 'ns/a', message: 'the object cannot be read: a bug' }])
  })
})

describe('any fault in any state', () => {
  const half = '{"type":"ADDED","object":{"metadata":{"namespace":"ns","name":"half"'
  const faults: Record<string, Answer> = {
    'connection reset': hangUp,
    'no answer': hang,
    'headers, then cut': lines([], 'cut'),
    'half a line, then cut': lines([half], 'cut'),
    'half a line, then end': lines([half], 'end'),
    'a malformed line': lines(['garbage\n'], 'open'),
    'a malformed line, then end': lines(['garbage\n'], 'end'),
    empty: lines([], 'end'),
    '401': refuse(401, 'Unauthorized'),
    '403': refuse(403, 'Forbidden'),
    '404': refuse(404, 'NotFound'),
    '410': refuse(410, 'Expired'),
    '429': refuse(429, 'TooManyRequests'),
    '429 with Retry-After': json({ code: 429 }, 429, { 'retry-after': '1' }),
    '500': refuse(500, 'InternalError'),
    '503': refuse(503, 'ServiceUnavailable'),
    '504 too large': refuse(504, 'Timeout', 'Too large resource version: 1, current: 0'),
    'a page of HTML': (response) =>
      void response.writeHead(200, { 'content-type': 'text/html' }).end('<html>\n</html>\n'),
    'HTML 502': (response) => void response.writeHead(502).end('<html>'),
  }
  const states: State[] = ['watchlist', 'list', 'page', 'watch']
  const table = states.flatMap((state) => Object.keys(faults).map((fault) => [state, fault] as const))

  it.each(table)('%s: %s', async (state, fault) => {
    const api = await fake('a', 'b', 'c', 'd', 'e')
    api.watchList = state === 'watchlist'
    api.faults.push({ state, answer: faults[fault] as Answer }, { state, answer: faults[fault] as Answer })
    // Fast enough for hangs of 75 s, slow enough for a busy machine.
    const made = harness(api, 400)
    await until('the fault has struck', () => api.faults.length < 2)
    await agree(api, made)
    api.remove('a')
    api.put('b')
    api.put('f')
    await agree(api, made)
    if (state === 'watch') await until('both faults have struck or been avoided', () => api.watchers > 0)
    expect(made.duplicates).toEqual([])
    expect(made.synced).toBe(1)
  })

  it.each(states)('stops at once in the state %s', async (state) => {
    const api = await fake('a', 'b', 'c', 'd')
    api.watchList = state === 'watchlist'
    api.faults.push({ state, answer: hang })
    const made = harness(api, 1)
    await until('the state', () => api.faults.length === 0)
    const started = performance.now()
    await made.stop()
    cleanups.pop()
    expect(performance.now() - started).toBeLessThan(2_000)
  })

  it('stops at once while it waits for its next attempt', async () => {
    const api = await fake('a')
    for (let i = 0; i < 50; i++) api.faults.push({ state: 'watchlist', answer: hangUp })
    const made = harness(api, 1)
    await until('a wait', () => made.clock.waits.some((ms) => ms < 2_000))
    await made.stop()
    cleanups.pop()
  })
})
