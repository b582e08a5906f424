// The registry on disk: a snapshot and the changes that came after it, in one directory. Reading it is in log-recovery.ts.
//
//  1. When `append` has resolved, the batch is on disk: each batch is one line with a checksum, and it is synced before the next batch
//     is written. So only the last line can be torn by a crash or a power cut. Its writers have got no response, so it is dropped.
//  2. A bad line followed by good lines is damage, not a crash. Then opening fails and names the file and the byte.
//  3. Compaction never blocks writers: they continue in the next file while the snapshot of the state before it is written to a new
//     file. Only a complete, synced snapshot replaces the old one.
//  4. A write that fails (disk full) leaves the file as it was before.
//
// The files are `<generation>.snapshot` and `<generation>.journal`.

import { type FileHandle, open, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { ensurePrivateDirectory, openPrivateForAppend } from '../../sys/private-files.ts'
import { lockDirectory } from './directory-lock.ts'
import { formatBatch, formatFooter, type Mutation } from './log-lines.ts'
import { type LogPosition, type Recovered, recover, removeGenerationsBefore } from './log-recovery.ts'

export interface WriteAheadLog {
  append(batch: readonly Mutation[]): Promise<void>
  /** True if the log has grown enough to be worth a snapshot. */
  readonly needsCompaction: boolean
  /**
   * `state` holds all objects as of the last `append`, and no `append` may be under way. Resolves when writers may continue. The
   * snapshot is written after that; `onFailure` is called if it cannot be written.
   */
  compact(version: number, state: readonly Mutation[], onFailure: (error: unknown) => void): Promise<void>
  close(): Promise<void>
}

/** Stores nothing: for tests and servers whose state ends with the process. */
export const createMemoryLog = (): WriteAheadLog => ({
  append: async () => {},
  needsCompaction: false,
  compact: async () => {},
  close: async () => {},
})

const defaultCompactBytes = 4 << 20
/** The number of objects in one line of a snapshot. */
const snapshotBatch = 200

/** A log smaller than `compactBytes` needs no compaction. */
export async function openLog(
  directory: string,
  compactBytes = defaultCompactBytes,
): Promise<{ writeAheadLog: WriteAheadLog; recovered: Recovered }> {
  ensurePrivateDirectory(directory)
  const lock = await lockDirectory(directory)
  try {
    const recovered = await recover(directory)
    const file = await openLogFile(directory, recovered)
    const writeAheadLog = new DiskLog({ directory, file, position: recovered, compactBytes, release: lock.release })
    return { writeAheadLog, recovered }
  } catch (error) {
    await lock.release()
    throw error
  }
}

async function openLogFile(directory: string, { generation, size }: LogPosition): Promise<FileHandle> {
  const file = await openPrivateForAppend(join(directory, `${generation}.journal`))
  // Removes a torn line before the next line is written behind it.
  await file.truncate(size)
  await file.sync()
  await syncDirectory(directory)
  return file
}

interface DiskLogOptions {
  readonly directory: string
  readonly file: FileHandle
  readonly position: LogPosition
  readonly compactBytes: number
  readonly release: () => Promise<void>
}

class DiskLog implements WriteAheadLog {
  readonly #directory: string
  readonly #release: () => Promise<void>
  readonly #compactBytes: number
  #file: FileHandle
  #generation: number
  #size: number
  #snapshotSize: number
  /** Set when a failed write could not be undone. */
  #broken: unknown
  #compacting: Promise<void> | undefined

  constructor(options: DiskLogOptions) {
    this.#directory = options.directory
    this.#file = options.file
    this.#generation = options.position.generation
    this.#size = options.position.size
    this.#snapshotSize = options.position.snapshotSize
    this.#compactBytes = options.compactBytes
    this.#release = options.release
  }

  get needsCompaction(): boolean {
    return this.#compacting === undefined && this.#size > Math.max(this.#compactBytes, this.#snapshotSize)
  }

  async append(batch: readonly Mutation[]): Promise<void> {
    if (this.#broken !== undefined) throw writeError(this.#broken)
    const bytes = Buffer.from(formatBatch(batch))
    try {
      await writeAll(this.#file, bytes)
      await this.#file.datasync()
    } catch (error) {
      await this.#undoAppend(error)
      throw writeError(error)
    }
    this.#size += bytes.length
  }

  /** If this fails as well, no batch may be written any more: it would follow half a line. */
  async #undoAppend(cause: unknown): Promise<void> {
    try {
      await this.#file.truncate(this.#size)
      await this.#file.datasync()
    } catch {
      this.#broken = cause
    }
  }

  async compact(version: number, state: readonly Mutation[], onFailure: (error: unknown) => void): Promise<void> {
    const generation = this.#generation + 1
    const next = await open(join(this.#directory, `${generation}.journal`), 'ax', 0o600)
    await syncDirectory(this.#directory)
    const old = this.#file
    this.#file = next
    this.#generation = generation
    this.#size = 0
    await old.close()
    this.#compacting = this.#writeSnapshot(generation, version, state)
      .catch((error: unknown) => onFailure(writeError(error)))
      .finally(() => {
        this.#compacting = undefined
      })
  }

  async #writeSnapshot(generation: number, version: number, state: readonly Mutation[]): Promise<void> {
    const path = join(this.#directory, `${generation}.snapshot`)
    const file = await open(`${path}.part`, 'wx', 0o600)
    let size = 0
    try {
      for (let i = 0; i < state.length; i += snapshotBatch) {
        const bytes = Buffer.from(formatBatch(state.slice(i, i + snapshotBatch)))
        await writeAll(file, bytes)
        size += bytes.length
      }
      await writeAll(file, Buffer.from(formatFooter({ complete: state.length, version })))
      await file.sync()
    } catch (error) {
      await rm(`${path}.part`, { force: true })
      throw error
    } finally {
      await file.close()
    }
    await rename(`${path}.part`, path)
    await syncDirectory(this.#directory)
    this.#snapshotSize = size
    await removeGenerationsBefore(this.#directory, generation)
  }

  async close(): Promise<void> {
    await this.#compacting
    await this.#file.close()
    await this.#release()
  }
}

const writeError = (cause: unknown) =>
  new ProxyError('storage', `cannot write to the state directory: ${describeError(cause)}`, { cause })

async function writeAll(file: FileHandle, bytes: Buffer): Promise<void> {
  for (let at = 0; at < bytes.length; ) at += (await file.write(bytes, at, bytes.length - at)).bytesWritten
}

async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
