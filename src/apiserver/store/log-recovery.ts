// Reads the state directory when the server starts: the newest snapshot, and the changes that were logged after it.

import { readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { ProxyError } from '../../lib/errors.ts'
import { openPrivateForRead } from '../../sys/private-files.ts'
import { type Mutation, parseBatch, parseFooter, parseLine } from './log-lines.ts'

export interface Recovered {
  /** The newest version of the snapshot. The changes that led to it are lost, so older versions have expired. */
  readonly base: number
  readonly snapshot: readonly Mutation[]
  readonly since: readonly Mutation[]
  /** Bytes of a torn last line that were dropped. */
  readonly dropped: number
}

/** The files that the log continues with. */
export interface LogPosition {
  readonly generation: number
  /** Bytes of good lines in the newest log file. */
  readonly size: number
  readonly snapshotSize: number
}

export async function recover(directory: string): Promise<Recovered & LogPosition> {
  const names = await readdir(directory)
  for (const name of names.filter((candidate) => candidate.endsWith('.part'))) await rm(join(directory, name))
  const start = generationsOf(names, 'snapshot').at(-1) ?? 0
  const { base, snapshot, snapshotSize } = await readSnapshot(directory, start)
  const generations = generationsOf(names, 'journal').filter((generation) => generation >= start)
  const since: Mutation[] = []
  let size = 0
  let dropped = 0
  for (const [i, generation] of generations.entries()) {
    const path = join(directory, `${generation}.journal`)
    const lines = await readLines(path)
    // A log file is complete before the next one is created.
    if (lines.torn > 0 && i < generations.length - 1) throw damageError(path, lines.size)
    for (const document of lines.documents) since.push(...parseBatch(document))
    size = lines.size
    dropped = lines.torn
  }
  await removeGenerationsBefore(directory, start)
  return { generation: generations.at(-1) ?? Math.max(start, 1), size, snapshotSize, base, snapshot, since, dropped }
}

/** The generations of all files with the suffix, oldest first. */
const generationsOf = (names: readonly string[], suffix: 'snapshot' | 'journal'): readonly number[] =>
  names
    .filter((name) => new RegExp(`^\\d+\\.${suffix}$`).test(name))
    .map((name) => Number.parseInt(name, 10))
    .sort((a, b) => a - b)

async function readSnapshot(
  directory: string,
  generation: number,
): Promise<{ base: number; snapshot: readonly Mutation[]; snapshotSize: number }> {
  if (generation === 0) return { base: 0, snapshot: [], snapshotSize: 0 }
  const path = join(directory, `${generation}.snapshot`)
  const { documents, size, torn } = await readLines(path)
  const footer = parseFooter(documents.at(-1))
  const snapshot: Mutation[] = []
  for (const document of documents.slice(0, -1)) snapshot.push(...parseBatch(document))
  if (torn > 0 || footer === undefined || footer.complete !== snapshot.length) throw damageError(path, size)
  return { base: footer.version, snapshot, snapshotSize: size }
}

interface LogLines {
  readonly documents: readonly unknown[]
  /** Bytes of good lines. */
  readonly size: number
  /** Bytes of a torn last line. */
  readonly torn: number
}

const newline = 0x0a

async function readLines(path: string): Promise<LogLines> {
  const bytes = await readBytes(path)
  const documents: unknown[] = []
  let at = 0
  while (at < bytes.length) {
    const end = bytes.indexOf(newline, at)
    const document = end < 0 ? undefined : parseLine(bytes.subarray(at, end))
    if (document === undefined) {
      if (end >= 0 && hasGoodLine(bytes, end + 1)) throw damageError(path, at)
      break
    }
    documents.push(document)
    at = end + 1
  }
  return { documents, size: at, torn: bytes.length - at }
}

async function readBytes(path: string): Promise<Buffer> {
  const file = await openPrivateForRead(path)
  try {
    return await file.readFile()
  } finally {
    await file.close()
  }
}

function hasGoodLine(bytes: Buffer, from: number): boolean {
  for (let at = from; at < bytes.length; ) {
    const end = bytes.indexOf(newline, at)
    if (end < 0) return false
    if (parseLine(bytes.subarray(at, end)) !== undefined) return true
    at = end + 1
  }
  return false
}

const damageError = (path: string, at: number) =>
  new ProxyError('storage', `${path} is damaged at byte ${at}; restore it from a backup, or remove it to start empty`, {
    fields: { path, at },
  })

/** Removes the files that a newer snapshot has replaced. */
export async function removeGenerationsBefore(directory: string, generation: number): Promise<void> {
  for (const name of await readdir(directory)) {
    if (/^\d+\.(journal|snapshot)$/.test(name) && Number.parseInt(name, 10) < generation)
      await rm(join(directory, name))
  }
}
