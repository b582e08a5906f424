// Watches a directory of manifests, and applies them whenever a file changes. How they become objects is in applier.ts.

import { type FSWatcher, watch } from 'node:fs'
import { readdir, readFile, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { describeError, hasErrno } from '../../lib/errors.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { type ApplierOptions, type FileContent, ManifestApplier } from './applier.ts'
import type { ManifestProblem } from './parse.ts'

export interface ManifestFolder {
  /** The problems of the files as they are now. */
  problems(): readonly ManifestProblem[]
  /** Calls the listener now and after each reading of the directory. */
  subscribe(listener: (problems: readonly ManifestProblem[]) => void): () => void
  /** Reads the directory at once. */
  rescan(): Promise<void>
  close(): Promise<void>
}

export interface ManifestOptions extends ApplierOptions {
  readonly directory: string
  readonly clock: Clock
}

/** Editors write a file in several steps. */
const quietMs = 100
/** Some file systems report no changes, and a user may have deleted an object through the API. */
const rescanMs = 30_000
/** As for the body of a request: all files are applied in one turn of the event loop, and the proxy in this process waits meanwhile. */
const maxFileBytes = 3 << 20
const suffix = /\.(ya?ml|json)$/

export async function watchManifests(options: ManifestOptions): Promise<ManifestFolder> {
  const folder = new WatchedFolder(options)
  await folder.rescan()
  folder.watch()
  return folder
}

class WatchedFolder implements ManifestFolder {
  readonly #options: ManifestOptions
  readonly #applier: ManifestApplier
  #scanning: Promise<void> | undefined
  #needsRescan = false
  #watcher: FSWatcher | undefined
  #quiet: Timer | undefined
  #periodic: Timer | undefined
  #readProblem: ManifestProblem | undefined
  #closed = false
  readonly #listeners = new Set<(problems: readonly ManifestProblem[]) => void>()

  constructor(options: ManifestOptions) {
    this.#options = options
    this.#applier = new ManifestApplier(options)
  }

  problems(): readonly ManifestProblem[] {
    return [...(this.#readProblem === undefined ? [] : [this.#readProblem]), ...this.#applier.problems()]
  }

  subscribe(listener: (problems: readonly ManifestProblem[]) => void): () => void {
    this.#listeners.add(listener)
    listener(this.problems())
    return () => void this.#listeners.delete(listener)
  }

  watch(): void {
    if (this.#closed) return
    this.#watchDirectory()
    this.#periodic = this.#options.clock.after(rescanMs, () => {
      void this.rescan().then(() => this.watch())
    })
  }

  #watchDirectory(): void {
    if (this.#watcher !== undefined) return
    try {
      this.#watcher = watch(this.#options.directory, () => {
        this.#quiet?.cancel()
        this.#quiet = this.#options.clock.after(quietMs, () => void this.rescan())
      })
      this.#watcher.on('error', () => this.#unwatch())
    } catch {
      this.#unwatch()
    }
  }

  #unwatch(): void {
    this.#watcher?.close()
    this.#watcher = undefined
  }

  async rescan(): Promise<void> {
    if (this.#scanning !== undefined) {
      this.#needsRescan = true
      return this.#scanning
    }
    this.#scanning = this.#scanUntilDone().finally(() => {
      this.#scanning = undefined
    })
    return this.#scanning
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#unwatch()
    this.#quiet?.cancel()
    this.#periodic?.cancel()
    await this.#scanning
  }

  async #scanUntilDone(): Promise<void> {
    do {
      this.#needsRescan = false
      await this.#scan()
      if (!this.#closed) for (const listener of this.#listeners) listener(this.problems())
    } while (this.#needsRescan && !this.#closed)
  }

  async #scan(): Promise<void> {
    let contents: ReadonlyMap<string, FileContent>
    try {
      contents = await readContents(this.#options.directory)
      this.#readProblem = undefined
    } catch (error) {
      this.#reportUnreadable(describeError(error))
      return
    }
    if (this.#closed) return
    this.#applier.applyAll(contents)
    // The registry reports the error, and the next scan tries again.
    await this.#options.registry.settled().catch(() => {})
  }

  #reportUnreadable(message: string): void {
    const { directory, log } = this.#options
    if (this.#readProblem?.message !== message)
      log.error('Cannot read the directory of manifests; their objects stay', { directory, error: message })
    this.#readProblem = { file: directory, line: 0, field: '', message }
  }
}

/** Reads neither a file that is too large nor one whose reading could wait forever, such as a named pipe. */
async function readContent(path: string): Promise<FileContent> {
  const file = await stat(path)
  if (!file.isFile()) return { source: '', failure: 'is not a regular file' }
  if (file.size > maxFileBytes) {
    return { source: '', failure: `has ${file.size} bytes, more than ${maxFileBytes}; split the file` }
  }
  return { source: await readFile(path, 'utf8'), failure: '' }
}

async function readContents(directory: string): Promise<ReadonlyMap<string, FileContent>> {
  const entries = await readdir(directory, { withFileTypes: true })
  const names = entries
    .filter((entry) => !entry.isDirectory() && suffix.test(entry.name) && !entry.name.startsWith('.'))
    .map((entry) => entry.name)
  const contents = new Map<string, FileContent>()
  for (const name of names.sort()) {
    try {
      contents.set(name, await readContent(join(directory, name)))
    } catch (error) {
      // A file without an entry was removed since readdir; any other file exists and is unreadable.
      if (!hasErrno(error, 'ENOENT')) contents.set(name, { source: '', failure: describeError(error) })
    }
  }
  return contents
}
