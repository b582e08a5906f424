// Saves the state on disk while the proxy runs: a snapshot when the first state is complete, then the changes as they come, in batches.
//
// 1. The snapshot is written to a file of its own, which replaces the old one when it is on disk. A proxy that is killed leaves the old
//    file, or the new one.
// 2. Changes are appended a second after the first of them. When they have become longer than the snapshot, a new snapshot is written.
// 3. Nothing is written without a change, except that the time of the file is set once an hour: it says until when the state was good.
// 4. A failure, such as a full disk, is logged once and tried again after a minute. It never disturbs the proxy.

import { constants } from 'node:fs'
import { type FileHandle, open, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { type StateChange, StateEncoder } from './state-format.ts'
import type { StateFile } from './state-reader.ts'

const flushMs = 1_000
const retryMs = 60_000
const touchMs = 3_600_000
const chunkBytes = 256 * 1024
/** A small file is not replaced because of a few changes. */
const smallBytes = 4 << 20

export interface StateWriterOptions {
  readonly file: Pick<StateFile, 'path' | 'owner' | 'maxBytes'>
  /** Every object of the current state. Objects may change while the caller iterates. */
  readonly snapshot: () => Iterable<StateChange>
  /** True while the state is that of the API server, as far as this proxy knows. */
  readonly isCurrent: () => boolean
  readonly clock: Clock
  readonly log: Logger
}

export interface WriterFigures {
  /** Unix ms; 0 before the first. */
  readonly savedAt: number
  readonly bytesWritten: number
  readonly failures: number
  /** Why the last write failed; '' if it did not. */
  readonly error: string
}

export class StateWriter {
  readonly #options: StateWriterOptions
  readonly #pending = new Map<string, StateChange>()
  readonly #encoder = new StateEncoder()
  #file: FileHandle | undefined
  #snapshotBytes = 0
  #changeBytes = 0
  #figures: WriterFigures = { savedAt: 0, bytesWritten: 0, failures: 0, error: '' }
  #hasBegun = false
  #isClosed = false
  #timer: Timer | undefined
  #touchTimer: Timer | undefined
  #writing: Promise<void> = Promise.resolve()

  constructor(options: StateWriterOptions) {
    this.#options = options
  }

  get figures(): WriterFigures {
    return this.#figures
  }

  /** Called when the state is complete. */
  begin(): void {
    if (this.#hasBegun) return
    this.#hasBegun = true
    this.#pending.clear()
    this.#schedule(flushMs)
    this.#scheduleTouch()
  }

  /** Notes a change of the live state. Before `begin` nothing is noted: the snapshot will have it. */
  note(change: StateChange): void {
    if (!this.#hasBegun) return
    this.#pending.set(`${change.kind} ${change.key}`, change)
    if (this.#timer === undefined) this.#schedule(flushMs)
  }

  /** Writes what waits, and closes the file. */
  async close(): Promise<void> {
    this.#isClosed = true
    this.#touchTimer?.cancel()
    const isWaiting = this.#timer !== undefined
    this.#timer?.cancel()
    this.#timer = undefined
    await this.#writing
    if (isWaiting && this.#figures.error === '') await this.#write()
    await this.#touch()
    await this.#file?.close().catch(() => {})
  }

  #schedule(ms: number): void {
    this.#timer = this.#options.clock.after(ms, () => {
      this.#timer = undefined
      this.#writing = this.#writing.then(() => this.#write())
    })
  }

  async #write(): Promise<void> {
    const { log, file } = this.#options
    try {
      const isLong = this.#changeBytes > this.#snapshotBytes + smallBytes
      if (this.#file === undefined || isLong) await this.#writeSnapshot()
      await this.#append()
      this.#figures = { ...this.#figures, savedAt: this.#options.clock.now(), error: '' }
    } catch (error) {
      await this.#forgetFile()
      const { failures } = this.#figures
      if (this.#figures.error === '') log.warn('The state cannot be saved on disk', { path: file.path, error })
      this.#figures = { ...this.#figures, failures: failures + 1, error: describeError(error) }
      if (!this.#isClosed) this.#schedule(retryMs)
    }
  }

  async #writeSnapshot(): Promise<void> {
    const { path, owner } = this.#options.file
    const part = `${path}.part`
    await this.#forgetFile()
    this.#pending.clear()
    await rm(part, { force: true })
    const { O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY } = constants
    const file = await open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
    this.#file = file
    this.#snapshotBytes = await this.#writeLines(file, this.#snapshotLines(owner), 0)
    this.#changeBytes = 0
    await file.datasync()
    await rename(part, path)
    await syncDirectory(dirname(path))
  }

  *#snapshotLines(owner: StateFile['owner']): Iterable<string> {
    yield this.#encoder.header(owner)
    for (const change of this.#options.snapshot()) yield this.#encoder.change(change)
    yield this.#encoder.endOfSnapshot()
  }

  async #append(): Promise<void> {
    const changes = [...this.#pending.values()]
    this.#pending.clear()
    if (changes.length === 0 || this.#file === undefined) return
    const lines = changes.map((change) => this.#encoder.change(change))
    this.#changeBytes += await this.#writeLines(this.#file, lines, this.#snapshotBytes + this.#changeBytes)
  }

  /** Writes in chunks, so that the event loop runs in between. Returns the number of bytes. */
  async #writeLines(file: FileHandle, lines: Iterable<string>, before: number): Promise<number> {
    const { maxBytes } = this.#options.file
    let [chunk, bytes] = ['', 0]
    const flush = async () => {
      const { length } = Buffer.from(chunk)
      if (before + bytes + length > maxBytes)
        throw new Error(`the state has more than state.maxBytes: ${maxBytes} bytes`)
      await file.writeFile(chunk)
      bytes += length
      chunk = ''
      this.#figures = { ...this.#figures, bytesWritten: this.#figures.bytesWritten + length }
    }
    for (const line of lines) {
      chunk += line
      if (chunk.length >= chunkBytes) await flush()
    }
    if (chunk !== '') await flush()
    return bytes
  }

  async #forgetFile(): Promise<void> {
    const file = this.#file
    this.#file = undefined
    await file?.close().catch(() => {})
  }

  #scheduleTouch(): void {
    this.#touchTimer = this.#options.clock.after(touchMs, () => {
      this.#writing = this.#writing.then(() => this.#touch())
      this.#scheduleTouch()
    })
  }

  async #touch(): Promise<void> {
    if (this.#file === undefined || !this.#options.isCurrent()) return
    const now = this.#options.clock.now() / 1000
    await this.#file.utimes(now, now).catch(() => {})
  }
}

/** Makes a rename in the directory survive a loss of power. */
async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, constants.O_RDONLY)
  try {
    await directory.sync()
  } finally {
    await directory.close()
  }
}
