// Keeps the history on disk: one line of JSON per record, in a file that is appended to. When the file is full it becomes the old file,
// and the old file before it goes: two files at most. What a crash cut off at the end of a file is ignored when the file is read.

import { type FileHandle, rename } from 'node:fs/promises'
import { join } from 'node:path'
import type { HistoryRecord } from '../../engine/history/history-record.ts'
import { describeError, hasErrno } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { nextTurn } from '../../lib/time.ts'
import { ensurePrivateDirectory, openPrivateForAppend, openPrivateForRead } from '../../sys/private-files.ts'

export interface HistoryFileOptions {
  readonly directory: string
  readonly node: string
  /** The size of each of the two files. */
  readonly maxBytes: number
  readonly log: Logger
}

/** Lines that are parsed in one turn of the event loop. */
const linesPerTurn = 200

export class HistoryFile {
  readonly #options: HistoryFileOptions
  readonly #path: string
  #file: FileHandle | undefined
  #bytes = 0
  #waiting: string[] = []
  #waitingBytes = 0
  #lost = 0
  #writing: Promise<void> | undefined
  #hasFailed = false

  constructor(options: HistoryFileOptions) {
    this.#options = options
    this.#path = join(options.directory, `${options.node}.history`)
  }

  /** True while what is recorded cannot be written. */
  get hasFailed(): boolean {
    return this.#hasFailed
  }

  /** Calls `onLine` for every valid record, oldest first. A file that cannot be read is reported, and the history starts empty. */
  async read(onLine: (line: string, sync: number) => void): Promise<void> {
    try {
      ensurePrivateDirectory(this.#options.directory)
      for (const path of [`${this.#path}.old`, this.#path]) await this.#readOne(path, onLine)
    } catch (error) {
      this.#options.log.warn('The history on disk cannot be read', { path: this.#path, error: describeError(error) })
    }
  }

  /** Adds a line. It is written at once, with all others that came while the last write went on. */
  append(line: string): void {
    if (this.#waitingBytes + line.length > this.#options.maxBytes) this.#lost++
    else {
      this.#waiting.push(line)
      this.#waitingBytes += line.length
    }
    this.#writing ??= this.#write().finally(() => {
      this.#writing = undefined
    })
  }

  async close(): Promise<void> {
    await this.#writing
    await this.#file?.close().catch(() => {})
  }

  async #readOne(path: string, onLine: (line: string, sync: number) => void): Promise<void> {
    const text = await readIfThere(path, 2 * this.#options.maxBytes)
    let seen = 0
    for (const line of text.split('\n')) {
      if (++seen % linesPerTurn === 0) await nextTurn()
      const sync = readSync(line)
      if (sync !== undefined) onLine(line, sync)
    }
  }

  async #write(): Promise<void> {
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.length
      const text = `${this.#waiting.join('\n')}\n`
      try {
        const file = await this.#openFor(Buffer.byteLength(text))
        await file.appendFile(text)
        this.#bytes += Buffer.byteLength(text)
        this.#reportSuccess()
      } catch (error) {
        await this.#reportFailure(error)
        return
      }
      this.#waiting = this.#waiting.slice(batch)
      this.#waitingBytes = this.#waiting.reduce((sum, line) => sum + line.length, 0)
    }
  }

  /** Returns the file with room for so many bytes. */
  async #openFor(bytes: number): Promise<FileHandle> {
    if (this.#file === undefined) await this.#open()
    if (this.#bytes === 0 || this.#bytes + bytes <= this.#options.maxBytes) return this.#file as FileHandle
    await this.#file?.close()
    this.#file = undefined
    await rename(this.#path, `${this.#path}.old`)
    return this.#open()
  }

  async #open(): Promise<FileHandle> {
    ensurePrivateDirectory(this.#options.directory)
    const file = await openPrivateForAppend(this.#path)
    this.#file = file
    this.#bytes = (await file.stat()).size
    // A crash may have cut the last line off: the next record must not become a part of it.
    if (this.#bytes > 0 && !(await endsLine(file, this.#bytes))) {
      await file.appendFile('\n')
      this.#bytes++
    }
    return file
  }

  #reportSuccess(): void {
    const { log } = this.#options
    if (this.#hasFailed) log.info('The history is written on disk again', { path: this.#path, lost: this.#lost })
    this.#hasFailed = false
    this.#lost = 0
  }

  /** What waits is tried again with the next record. */
  async #reportFailure(error: unknown): Promise<void> {
    const { log } = this.#options
    if (!this.#hasFailed)
      log.warn('The history cannot be written on disk', { path: this.#path, error: describeError(error) })
    this.#hasFailed = true
    await this.#file?.close().catch(() => {})
    this.#file = undefined
  }
}

async function readIfThere(path: string, maxBytes: number): Promise<string> {
  let file: FileHandle
  try {
    file = await openPrivateForRead(path)
  } catch (error) {
    if (hasErrno(error, 'ENOENT')) return ''
    throw error
  }
  try {
    const { size } = await file.stat()
    const length = Math.min(size, maxBytes)
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length)
    return buffer.toString('utf8', 0, bytesRead)
  } finally {
    await file.close()
  }
}

async function endsLine(file: FileHandle, size: number): Promise<boolean> {
  const { buffer } = await file.read(Buffer.alloc(1), 0, 1, size - 1)
  return buffer[0] === 0x0a
}

/** Returns the number of the record's sync; undefined if the line is not a record. */
function readSync(line: string): number | undefined {
  if (line === '') return undefined
  try {
    const record = JSON.parse(line) as Partial<HistoryRecord> | null
    return isRecord(record) ? record.sync : undefined
  } catch {
    return undefined
  }
}

const lists = ['causes', 'objects', 'notes', 'services', 'entries', 'refused'] as const

const isRecord = (record: Partial<HistoryRecord> | null): record is HistoryRecord =>
  Number.isSafeInteger(record?.sync) &&
  !Number.isNaN(Date.parse(String(record?.at))) &&
  lists.every((name) => Array.isArray(record?.[name]))
