// When the saved state is used, and how it is written: batched, after changes only, and never at the cost of the proxy.

import { chmodSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { defaultSluiceConfig } from '../../../src/config/sluice-config.ts'
import { findStateFile, SavedStart } from '../../../src/daemon/resilience/saved-start.ts'
import type { StateChange } from '../../../src/daemon/resilience/state-format.ts'
import { readState } from '../../../src/daemon/resilience/state-reader.ts'
import { StateWriter } from '../../../src/daemon/resilience/state-writer.ts'
import { silentLogger as log } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import type { NodeRecord, ServiceRecord } from '../../../src/model/types.ts'
import { directory } from '../../commands/run-command.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { until } from '../../support/until.ts'

const owner = { node: 'n1', cluster: 'c1' }
const stateFile = (path = join(directory(), 'n1.state')) => ({ path, owner, maxAgeMs: 3_600_000, maxBytes: 1 << 20 })
const service = (key: string, uid = '1'): StateChange => ({
  kind: 'service',
  key,
  record: { key, uid } as ServiceRecord,
})

const closing: { close(): Promise<void> }[] = []
afterEach(async () => {
  for (const one of closing.splice(0)) await one.close()
})

function makeWriter(file = stateFile(), objects: StateChange[] = [service('a/1')]) {
  const clock = new FakeClock()
  const writer = new StateWriter({ file, snapshot: () => objects, isCurrent: () => true, clock, log })
  closing.push(writer)
  const read = async () => {
    const state = await readState(file, systemClock)
    return typeof state === 'object' ? [...state.objects.service].map(([key, { uid }]) => `${key} ${uid}`) : state
  }
  const written = async (bytes: number) => {
    await until('the write is done', () => writer.figures.bytesWritten > bytes && writer.figures.savedAt > 0)
    return writer.figures.bytesWritten
  }
  return { clock, writer, read, written, objects, file }
}

describe('the writer', () => {
  it('writes a snapshot when the state is complete, then only changes, a second later and all at once', async () => {
    const { clock, writer, read, written, file } = makeWriter()
    writer.note(service('b/1'))
    await clock.advance(10_000)
    expect(await read()).toBeUndefined()
    writer.begin()
    await clock.advance(1_000)
    const snapshot = await written(0)
    expect(await read()).toEqual(['a/1 1'])
    expect(statSync(file.path).mode & 0o777).toBe(0o600)
    for (let i = 0; i < 100; i++) writer.note(service('a/2', String(i)))
    writer.note({ kind: 'service', key: 'a/1', record: undefined })
    await clock.advance(900)
    expect(writer.figures.bytesWritten).toBe(snapshot)
    await clock.advance(100)
    await written(snapshot)
    expect(await read()).toEqual(['a/2 99'])
    expect(readFileSync(file.path, 'utf8').trim().split('\n')).toHaveLength(5)
  })

  it('writes nothing while nothing changes', async () => {
    const { clock, writer, written } = makeWriter()
    writer.begin()
    await clock.advance(1_000)
    const bytes = await written(0)
    await clock.advance(24 * 3_600_000)
    expect(writer.figures.bytesWritten).toBe(bytes)
  })

  it('writes a new snapshot when the changes have become much longer than the old one', async () => {
    const file = { ...stateFile(), maxBytes: 64 << 20 }
    const { clock, writer, read, written, objects } = makeWriter(file)
    writer.begin()
    await clock.advance(1_000)
    let bytes = await written(0)
    for (const size of [5, 1]) {
      objects[0] = service('a/1', 'x'.repeat(size << 20))
      writer.note(objects[0])
      await clock.advance(1_000)
      bytes = await written(bytes)
    }
    await until('the file is short again', () => statSync(file.path).size < 3 << 20)
    expect((await read())?.length).toBe(1)
  })

  it('reports a failure, goes on, and saves again when it can', async () => {
    const folder = join(directory(), 'gone')
    mkdirSync(folder, { mode: 0o700 })
    const { clock, writer, read, written } = makeWriter(stateFile(join(folder, 'n1.state')))
    rmSync(folder, { recursive: true })
    writer.begin()
    await clock.advance(1_000)
    await until('the failure is noted', () => writer.figures.failures === 1)
    expect(writer.figures.error).toContain('ENOENT')
    mkdirSync(folder, { mode: 0o700 })
    await clock.advance(60_000)
    await written(0)
    expect(await read()).toEqual(['a/1 1'])
    expect(writer.figures.error).toBe('')
  })

  it('does not save more than state.maxBytes', async () => {
    const file = { ...stateFile(), maxBytes: 200 }
    const { clock, writer, read } = makeWriter(file, [service('a/1', 'x'.repeat(300))])
    writer.begin()
    await clock.advance(1_000)
    await until('the failure is noted', () => writer.figures.error.includes('state.maxBytes'))
    expect(await read()).toBeUndefined()
  })
})

function makeStart(file = stateFile(), given: { heard?: boolean; failed?: boolean } = {}) {
  const clock = new FakeClock()
  const replaced: string[] = []
  const start = new SavedStart({
    file,
    hasHeard: () => given.heard ?? false,
    hasFailed: () => given.failed ?? false,
    isCurrent: () => true,
    onReplaced: (sentence) => replaced.push(sentence),
    clock,
    log,
    signal: new AbortController().signal,
  })
  closing.push(start)
  const held = new Map<string, unknown>()
  const sink = { put: (key: string, record: unknown) => held.set(key, record), synced() {}, problem() {} }
  const sinks = () => ({
    services: { ...sink, drop: (key: string) => void held.delete(key) },
    slices: { ...sink, drop: (key: string) => void held.delete(key) },
    cidrs: { ...sink, drop: (key: string) => void held.delete(key) },
  })
  return { clock, start, replaced, held, sinks }
}

async function saveState(): Promise<ReturnType<typeof stateFile>> {
  const node: StateChange = { kind: 'node', key: 'n1', record: { name: 'n1' } as NodeRecord }
  const { clock, writer, written, file } = makeWriter(stateFile(), [node, service('a/1')])
  writer.begin()
  await clock.advance(1_000)
  await written(0)
  return file
}

describe('the saved state', () => {
  it('is used after a quarter of a second of silence, and replaced by the live state', async () => {
    const { clock, start, replaced, held, sinks } = makeStart(await saveState())
    const chosen = start.chooseNode(() => false)
    await clock.advance(240)
    expect(start.servesSince).toBeUndefined()
    await clock.advance(20)
    expect(await chosen).toEqual({ name: 'n1' })
    const live = start.openSinks(sinks())
    expect([...held.keys()]).toEqual(['a/1'])
    expect(start.summarise()).toMatchObject({ inUse: true, problem: '' })
    live.services.put('a/2', {} as ServiceRecord)
    live.services.synced()
    live.slices.synced()
    expect(start.servesSince).toBeGreaterThan(0)
    live.cidrs.synced()
    expect([...held.keys()]).toEqual(['a/2'])
    expect(start.servesSince).toBeUndefined()
    expect(replaced).toHaveLength(1)
  })

  it('is used at once if a request fails without an answer, unless something was heard before', async () => {
    const { clock, start } = makeStart(await saveState(), { failed: true })
    const chosen = start.chooseNode(() => false)
    await clock.advance(0)
    expect(await chosen).toEqual({ name: 'n1' })
    const heard = makeStart(await saveState(), { failed: true, heard: true })
    void heard.start.chooseNode(() => false)
    await heard.clock.advance(4_000)
    expect(heard.start.servesSince).toBeUndefined()
  })

  it('is not read if the API server answers', async () => {
    const { clock, start, held, sinks, replaced } = makeStart(await saveState(), { heard: true })
    let isLive = false
    const chosen = start.chooseNode(() => isLive)
    await clock.advance(3_000)
    isLive = true
    await clock.advance(10)
    expect(await chosen).toBeUndefined()
    const live = start.openSinks(sinks())
    for (const kind of ['services', 'slices', 'cidrs'] as const) live[kind].synced()
    await clock.advance(60_000)
    expect([held.size, replaced]).toEqual([0, []])
  })

  it('is used late if the API server sends its Node, but no complete list in five seconds', async () => {
    const { clock, start, held, sinks } = makeStart(await saveState(), { heard: true })
    expect(await start.chooseNode(() => true)).toBeUndefined()
    start.openSinks(sinks())
    await clock.advance(4_900)
    expect(held.size).toBe(0)
    await clock.advance(200)
    await until('the saved state is fed', () => held.has('a/1'))
  })

  it('is refused with a sentence, and the start goes on without it', async () => {
    const file = await saveState()
    writeFileSync(file.path, 'not a state')
    const { clock, start } = makeStart(file)
    let isLive = false
    const chosen = start.chooseNode(() => isLive)
    await clock.advance(300)
    await until('the file is refused', () => start.summarise()?.problem.includes('not used'))
    isLive = true
    expect(await chosen).toBeUndefined()
  })
})

describe('the place of the state', () => {
  const place = (folder: string) => ({
    settings: { ...defaultSluiceConfig().state, directory: folder },
    node: 'n1',
    connection: { server: new URL('https://api:6443'), ca: undefined },
    log,
  })

  it('is a directory of the configuration, which is made, with a file per node', () => {
    const folder = join(directory(), 'deep', 'state')
    expect(findStateFile(place(folder))?.path).toBe(join(folder, 'n1.state'))
    expect(statSync(folder).mode & 0o777).toBe(0o700)
  })

  it('is nowhere without a directory, or in one that others may write to', () => {
    expect(findStateFile(place(''))).toBeUndefined()
    const folder = join(directory(), 'open')
    mkdirSync(folder)
    chmodSync(folder, 0o777)
    expect(findStateFile(place(folder))).toBeUndefined()
  })

  it('differs in its owner for another cluster', () => {
    const folder = directory()
    chmodSync(folder, 0o700)
    const other = { ...place(folder), connection: { server: new URL('https://other:6443'), ca: undefined } }
    expect(findStateFile(place(folder))?.owner).not.toEqual(findStateFile(other)?.owner)
  })
})
