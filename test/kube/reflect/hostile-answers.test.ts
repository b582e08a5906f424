// Tests that whatever an API server sends costs at most the object or the answer that it is in: the reflector neither ends nor loses others.

import { gzipSync } from 'node:zlib'
import { afterEach, describe, expect, it } from 'vitest'
import { decodeService } from '../../../src/kube/decode/decode-service.ts'
import type { DecodedRecord } from '../../../src/kube/decode/fields.ts'
import { until } from '../../support/until.ts'
import { bookmark, FakeApi, type State } from '../fake-api.ts'
import { ReflectorHarness } from '../reflector-harness.ts'
import { type Answer, json, lines } from '../script-server.ts'

/** `JSON.stringify` overflows the stack at some thousand levels, depending on the depth of its caller. */
const levels = 20_000
const deep = `${'['.repeat(levels)}${']'.repeat(levels)}`

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

const makeService = (name: string, version: number, spec = '{"clusterIP":"10.0.0.1"}') =>
  `{"metadata":{"namespace":"ns","name":"${name}","uid":"u-${name}","resourceVersion":"${version}"},"spec":${spec}}`
const makeEvent = (type: string, object: string) => `{"type":"${type}","object":${object}}\n`
const raw =
  (body: string | Buffer, status = 200, headers: Record<string, string> = {}): Answer =>
  (response) =>
    void response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(body)

/** Decodes with the real decoder; the sink stores the number of a Service's cluster IPs. */
function countAddresses(input: unknown): DecodedRecord<number> {
  const { record, ...rest } = decodeService(input)
  return { ...rest, record: record?.clusterIps.length }
}

interface Fault {
  readonly state: State
  readonly answer: Answer
}

async function reflect(faults: readonly Fault[], watchList: boolean, decode = countAddresses) {
  const api = new FakeApi()
  api.watchList = watchList
  api.faults.push(...faults)
  await api.server.start()
  cleanups.push(() => api.server.stop())
  const made = new ReflectorHarness(api.server.url, 100, { decode })
  cleanups.push(() => made.stop())
  return { api, made }
}

const keys = (made: ReflectorHarness) => [...made.state.keys()].sort()

describe('a field that is nested deeply where a scalar is wanted', () => {
  const bad = makeService('bad', 2, `{"clusterIP":${deep}}`)

  it('costs its object in a snapshot', async () => {
    const snapshot = [makeService('a', 1), bad, makeService('c', 3)].map((object) => makeEvent('ADDED', object))
    const { made } = await reflect(
      [{ state: 'watchlist', answer: lines([...snapshot, bookmark(5, true)], 'open') }],
      true,
    )
    await until('the snapshot', () => made.synced === 1)
    expect(keys(made)).toEqual(['ns/a', 'ns/c'])
    expect(made.problems).toMatchObject([{ kind: 'Service', object: 'ns/bad', uid: 'u-bad', field: 'spec.clusterIP' }])
    expect(made.problems[0]?.message.length).toBeLessThan(120)
  })

  it('costs its object in a watch', async () => {
    const { api, made } = await reflect([], true)
    await until('the watch', () => made.synced === 1)
    api.send(makeEvent('ADDED', bad) + makeEvent('ADDED', makeService('c', 3)))
    await until('the other object', () => made.state.has('ns/c'))
    expect(made.problems).toHaveLength(1)
    expect(api.states).toHaveLength(1)
  })

  it('costs its object in a list', async () => {
    const page = `{"kind":"List","metadata":{"resourceVersion":"9"},"items":[${makeService('a', 1)},${bad},${deep}]}`
    const { made } = await reflect([{ state: 'list', answer: raw(page) }], false)
    await until('the list', () => made.synced === 1)
    expect(keys(made)).toEqual(['ns/a'])
    expect(made.problems.map(({ object }) => object)).toEqual(['ns/bad', '/(no name)'])
  })
})

describe('an answer that is nested deeply', () => {
  const faults: Record<string, readonly Fault[]> = {
    'an object that is not a list': [{ state: 'list', answer: raw(`{"items":${deep},"metadata":1}`) }],
    'a list of levels': [{ state: 'list', answer: raw(deep) }],
    'a Status': [{ state: 'list', answer: raw(`{"kind":"Status","details":${deep}}`, 500) }],
    'a refusal that is not a Status': [{ state: 'list', answer: raw(deep, 403) }],
    'an event of type ERROR': [{ state: 'watch', answer: lines([makeEvent('ERROR', `{"message":${deep}}`)], 'open') }],
    'a watch line': [{ state: 'watch', answer: lines([`${deep}\n`], 'open') }],
    'an unknown event': [{ state: 'watch', answer: lines([`{"type":${deep},"object":{}}\n`], 'open') }],
  }
  it.each(Object.entries(faults))('%s is reported and read again', async (_, list) => {
    const { api, made } = await reflect(list, false)
    await until('the second attempt', () => made.synced === 1 && api.watchers === 1)
    expect(api.faults).toEqual([])
  })
})

describe('whatever is thrown', () => {
  it('by a decoder is a problem of its object, which keeps what it had', async () => {
    let isBroken = false
    const decode = (input: unknown) => {
      if (isBroken && JSON.stringify(input).includes('"b"')) throw new RangeError('Maximum call stack size exceeded')
      return countAddresses(input)
    }
    const { api, made } = await reflect([], true, decode)
    await until('the watch', () => made.synced === 1)
    api.send(makeEvent('ADDED', makeService('b', 201)))
    await until('the object', () => made.state.has('ns/b'))
    isBroken = true
    api.send(makeEvent('MODIFIED', makeService('b', 202, '{"clusterIP":"10.0.0.9"}')))
    api.send(makeEvent('ADDED', makeService('c', 203)))
    await until('the next object', () => made.state.has('ns/c'))
    expect(keys(made)).toEqual(['ns/b', 'ns/c'])
    expect(made.problems).toMatchObject([
      {
        kind: 'Thing',
        object: 'ns/b',
        uid: 'u-b',
        message: 'the object cannot be read: Maximum call stack size exceeded',
      },
    ])
  })

  it('elsewhere is retried after a wait', async () => {
    const { api, made } = await reflect([], true)
    await until('the watch', () => made.synced === 1)
    const { problems } = made
    problems.push = () => {
      Reflect.deleteProperty(problems, 'push')
      throw new TypeError('a bug of the sink')
    }
    api.send('garbage\n')
    await until('another attempt', () => api.states.length > 1 && api.watchers > 0)
    await until('the end of the error', () => made.reflector.status().error === '')
  })
})

describe('an answer that is too large', () => {
  const padding = 'x'.repeat(1 << 20)
  const answerBySize: Answer = (response, seen) => {
    const limit = Number(seen.query.get('limit'))
    const start = Number(seen.query.get('continue') ?? 0)
    const names = ['a', 'b', 'c', 'd', 'e', 'f'].slice(start, start + limit)
    const end = start + names.length
    const metadata = `{"resourceVersion":"9"${end < 6 ? `,"continue":"${end}"` : ''}}`
    const items = names.map((name) => `${makeService(name, 1).slice(0, -1)},"padding":"${padding.repeat(7)}"}`)
    raw(`{"metadata":${metadata},"items":[${items.join()}]}`)(response, seen)
  }

  it('is read in smaller pages', async () => {
    const faults = Array.from({ length: 100 }, () => ['list', 'page'] as const).flat()
    const { api, made } = await reflect(
      faults.map((state) => ({ state, answer: answerBySize })),
      false,
    )
    await until('the list', () => made.synced === 1)
    expect(keys(made)).toHaveLength(6)
    const limits = api.states.map(({ seen }) => seen.query.get('limit')).filter((limit) => limit !== null)
    // On a busy machine an answer of 42 MB may take longer than this fast clock allows; then the same page is asked for again.
    expect([...new Set(limits)]).toEqual(['250', '32', '4'])
    expect(limits).toEqual([...limits].sort((a, b) => Number(b) - Number(a)))
  })

  it.each([
    ['spaces', ' '.repeat(300 << 20)],
    ['tiny objects', `{"items":[${'{},'.repeat(20 << 20)}`],
  ])('is not unpacked if it is compressed too well: %s', async (_, text) => {
    const bomb = gzipSync(text)
    const answer = raw(bomb, 200, { 'content-encoding': 'gzip' })
    const before = process.memoryUsage.rss()
    const { api, made } = await reflect(
      Array.from({ length: 4 }, () => ({ state: 'list' as const, answer })),
      false,
    )
    await until('the list after it', () => made.synced === 1)
    expect(api.states.length).toBeLessThan(12)
    expect(process.memoryUsage.rss() - before).toBeLessThan(300 << 20)
  })
})

it('versions and tokens too long for a URL are not used', async () => {
  const long = 'v'.repeat(1 << 20)
  const page = (metadata: object) => json({ metadata, items: [] })
  const { api, made } = await reflect(
    [
      { state: 'list', answer: page({ resourceVersion: long }) },
      { state: 'list', answer: page({ resourceVersion: '9', continue: long }) },
    ],
    false,
  )
  await until('a usable list', () => made.synced === 1)
  expect(api.states.every(({ seen }) => `${seen.query}`.length < 1_000)).toBe(true)
})

it('texts that are too long cost their field', async () => {
  const long = 'x'.repeat(5_000)
  const { api, made } = await reflect([], true)
  await until('the watch', () => made.synced === 1)
  api.send(makeEvent('ADDED', makeService('a', 201, `{"clusterIP":"10.0.0.1","type":"${long}"}`)))
  api.send(makeEvent('ADDED', makeService(long, 202)))
  await until('the problems', () => made.problems.length === 2)
  expect(keys(made)).toEqual(['ns/a'])
  for (const { object, message } of made.problems) expect(object.length + message.length).toBeLessThan(1_000)
})
