// The registry on disk: a snapshot and a journal of what came after it, in one directory.
//
//  1. What `append` has resolved for is on disk: each batch is one line with a checksum, and is synced before the next is
//     written. So only the last line can be torn, by a crash or a power cut, and it was never acknowledged: it is dropped.
//  2. A bad line with good ones behind it is damage, not a crash. Then nothing is guessed: opening fails and says where.
//  3. Compaction never blocks writers: they go on in the next journal while the snapshot of the state before it is
//     written beside the old one, and only a complete, synced snapshot replaces that.
//  4. A write that fails (disk full) leaves the journal as it was before it.

import { type FileHandle, mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { crc32 } from 'node:zlib'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { lockDirectory } from './directory-lock.ts'

/** One change: an object as JSON text, or its removal. */
export interface Mutation {
  readonly version: number
  readonly resource: string
  /** `namespace/name` or `name`. */
  readonly key: string
  /** undefined: removed. */
  readonly json: string | undefined
}

export interface Recovered {
  /** The newest version of the snapshot: what is older cannot be told apart any more. */
  readonly base: number
  readonly snapshot: readonly Mutation[]
  readonly since: readonly Mutation[]
  /** Bytes of a torn last line that were dropped. */
  readonly dropped: number
}

export interface WriteAheadLog {
  append(batch: readonly Mutation[]): Promise<void>
  /** Whether the journal has grown enough to be worth a snapshot. */
  readonly large: boolean
  /**
   * `state` is everything, as of the last `append`; none may be under way. Resolves when writers may go on; the snapshot
   * is written after that, and `failed` is told if it cannot be.
   */
  compact(version: number, state: readonly Mutation[], failed: (error: unknown) => void): Promise<void>
  close(): Promise<void>
}

/** For tests and throw-away servers. */
export const memoryLog = (): WriteAheadLog => ({
  append: async () => {},
  large: false,
  compact: async () => {},
  close: async () => {},
})

const smallest = 4 << 20

/** `compactBytes`: how large a journal may become, at least, before a snapshot is taken. */
export async function openLog(
  directory: string,
  compactBytes = smallest,
): Promise<{ journal: WriteAheadLog; recovered: Recovered }> {
  await mkdir(directory, { recursive: true, mode: 0o700 })
  const claim = await lockDirectory(directory)
  try {
    const recovered = await recover(directory)
    const journal = await DiskLog.open(directory, { ...recovered, compactBytes }, claim.release)
    return { journal, recovered }
  } catch (error) {
    await claim.release()
    throw error
  }
}

class DiskLog implements WriteAheadLog {
  readonly #directory: string
  readonly #release: () => Promise<void>
  #file: FileHandle
  #generation: number
  #size: number
  #snapshotSize: number
  readonly #compactBytes: number
  #broken: unknown
  #compacting: Promise<void> | undefined

  private constructor(directory: string, file: FileHandle, found: Setup, release: () => Promise<void>) {
    this.#directory = directory
    this.#file = file
    this.#generation = found.generation
    this.#size = found.size
    this.#snapshotSize = found.snapshotSize
    this.#compactBytes = found.compactBytes
    this.#release = release
  }

  static async open(directory: string, found: Setup, release: () => Promise<void>): Promise<DiskLog> {
    const file = await open(join(directory, `${found.generation}.journal`), 'a+', 0o600)
    // Also makes a torn line go away for good, before anything is written behind it.
    await file.truncate(found.size)
    await file.sync()
    await syncDirectory(directory)
    return new DiskLog(directory, file, found, release)
  }

  get large(): boolean {
    return this.#compacting === undefined && this.#size > Math.max(this.#compactBytes, this.#snapshotSize)
  }

  async append(batch: readonly Mutation[]): Promise<void> {
    if (this.#broken !== undefined) throw storageError(this.#broken)
    const bytes = Buffer.from(line(`[${batch.map(encode).join(',')}]`))
    try {
      await writeAll(this.#file, bytes)
      await this.#file.datasync()
    } catch (error) {
      await this.#takeBack(error)
      throw storageError(error)
    }
    this.#size += bytes.length
  }

  /** If even that fails, nothing may be written any more: it would stand behind half a line. */
  async #takeBack(cause: unknown): Promise<void> {
    try {
      await this.#file.truncate(this.#size)
      await this.#file.datasync()
    } catch {
      this.#broken = cause
    }
  }

  async compact(version: number, state: readonly Mutation[], failed: (error: unknown) => void): Promise<void> {
    const generation = this.#generation + 1
    const next = await open(join(this.#directory, `${generation}.journal`), 'ax', 0o600)
    await syncDirectory(this.#directory)
    const old = this.#file
    this.#file = next
    this.#generation = generation
    this.#size = 0
    await old.close()
    this.#compacting = this.#writeSnapshot(generation, version, state)
      .catch((error: unknown) => failed(storageError(error)))
      .finally(() => {
        this.#compacting = undefined
      })
  }

  async #writeSnapshot(generation: number, version: number, state: readonly Mutation[]): Promise<void> {
    const path = join(this.#directory, `${generation}.snapshot`)
    const file = await open(`${path}.part`, 'w', 0o600)
    let size = 0
    try {
      for (let i = 0; i < state.length; i += 200) {
        const bytes = Buffer.from(
          line(
            `[${state
              .slice(i, i + 200)
              .map(encode)
              .join(',')}]`,
          ),
        )
        await writeAll(file, bytes)
        size += bytes.length
      }
      await writeAll(file, Buffer.from(line(JSON.stringify({ complete: state.length, version }))))
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
    await removeBefore(this.#directory, generation)
  }

  async close(): Promise<void> {
    await this.#compacting
    await this.#file.close()
    await this.#release()
  }
}

const storageError = (cause: unknown) =>
  new ProxyError('storage', `cannot write to the state directory: ${describeError(cause)}`, { cause })

async function writeAll(file: FileHandle, bytes: Buffer): Promise<void> {
  for (let at = 0; at < bytes.length; ) at += (await file.write(bytes, at, bytes.length - at)).bytesWritten
}

const line = (json: string): string => `${crc32(json).toString(16).padStart(8, '0')} ${json}\n`

const encode = ({ version, resource, key, json }: Mutation): string =>
  `[${version},${JSON.stringify(resource)},${JSON.stringify(key)},${json ?? 'null'}]`

interface Setup extends Found {
  readonly compactBytes: number
}

interface Found {
  readonly generation: number
  /** Of the good part of the journal. */
  readonly size: number
  readonly snapshotSize: number
}

async function recover(directory: string): Promise<Recovered & Found> {
  const names = await readdir(directory)
  const numbered = (suffix: string) =>
    names
      .filter((name) => new RegExp(`^\\d+\\.${suffix}$`).test(name))
      .map((name) => Number.parseInt(name, 10))
      .sort((a, b) => a - b)
  for (const name of names.filter((candidate) => candidate.endsWith('.part'))) await rm(join(directory, name))
  const start = numbered('snapshot').at(-1) ?? 0
  const snapshot: Mutation[] = []
  let base = 0
  let snapshotSize = 0
  if (start > 0) {
    const read = await readLines(join(directory, `${start}.snapshot`))
    const footer = read.documents.at(-1) as { complete?: unknown; version?: unknown } | undefined
    for (const document of read.documents.slice(0, -1)) snapshot.push(...decodeBatch(document))
    if (read.torn > 0 || footer?.complete !== snapshot.length || typeof footer.version !== 'number') {
      throw damage(join(directory, `${start}.snapshot`), read.size)
    }
    base = footer.version
    snapshotSize = read.size
  }
  const journals = numbered('journal').filter((number) => number >= start)
  const since: Mutation[] = []
  let size = 0
  let dropped = 0
  for (const [i, number] of journals.entries()) {
    const path = join(directory, `${number}.journal`)
    const read = await readLines(path)
    // A journal is complete before the next one is begun.
    if (read.torn > 0 && i < journals.length - 1) throw damage(path, read.size)
    for (const document of read.documents) since.push(...decodeBatch(document))
    size = read.size
    dropped = read.torn
  }
  await removeBefore(directory, start)
  return { generation: journals.at(-1) ?? Math.max(start, 1), size, snapshotSize, base, snapshot, since, dropped }
}

interface Lines {
  readonly documents: readonly unknown[]
  /** Bytes of good lines. */
  readonly size: number
  /** Bytes of a torn last line. */
  readonly torn: number
}

async function readLines(path: string): Promise<Lines> {
  const bytes = await readFile(path)
  const documents: unknown[] = []
  let at = 0
  while (at < bytes.length) {
    const end = bytes.indexOf(10, at)
    const document = end < 0 ? undefined : openLine(bytes.subarray(at, end))
    if (document === undefined) {
      if (end >= 0 && hasGoodLine(bytes, end + 1)) throw damage(path, at)
      break
    }
    documents.push(document)
    at = end + 1
  }
  return { documents, size: at, torn: bytes.length - at }
}

function hasGoodLine(bytes: Buffer, from: number): boolean {
  for (let at = from; at < bytes.length; ) {
    const end = bytes.indexOf(10, at)
    if (end < 0) return false
    if (openLine(bytes.subarray(at, end)) !== undefined) return true
    at = end + 1
  }
  return false
}

function openLine(bytes: Buffer): unknown {
  const sum = bytes.subarray(0, 8).toString('latin1')
  if (!/^[0-9a-f]{8}$/.test(sum) || bytes[8] !== 32) return undefined
  const json = bytes.subarray(9)
  return crc32(json) === Number.parseInt(sum, 16) ? JSON.parse(json.toString('utf8')) : undefined
}

function decodeBatch(document: unknown): readonly Mutation[] {
  return (document as [number, string, string, unknown][]).map(([version, resource, key, object]) => ({
    version,
    resource,
    key,
    json: object === null ? undefined : JSON.stringify(object),
  }))
}

const damage = (path: string, at: number) =>
  new ProxyError('storage', `${path} is damaged at byte ${at}; restore it from a backup, or remove it to start anew`, {
    fields: { path, at },
  })

async function removeBefore(directory: string, generation: number): Promise<void> {
  for (const name of await readdir(directory)) {
    if (/^\d+\.(journal|snapshot)$/.test(name) && Number.parseInt(name, 10) < generation)
      await rm(join(directory, name))
  }
}

async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
