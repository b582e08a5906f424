// Manifests in a directory become objects: a changed file is applied as a whole or not at all, a removed one takes its objects along.

import { type FSWatcher, watch } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import type { ObjectWriter, Place, WriteOptions } from '../requests/writes.ts'
import { type Cause, StatusError } from '../schema/api-status.ts'
import { child, type Json, text } from '../schema/json.ts'
import { findKind, metaOf, nameOf, namespaceOf, resources, type ServedResource } from '../schema/served-resources.ts'
import type { Entry } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import { type Manifest, type ManifestProblem, type ParsedManifest, readManifests } from './parse.ts'

export interface ManifestFolder {
  /** Of the files as they are now. */
  problems(): readonly ManifestProblem[]
  /** Looks at the directory at once. */
  rescan(): Promise<void>
  close(): Promise<void>
}

export interface ManifestOptions {
  readonly directory: string
  readonly writer: ObjectWriter
  readonly registry: Registry
  readonly log: Logger
  readonly clock: Clock
  readonly onChange?: () => void
}

/** Which file an object came from; survives restarts, so that a file removed meanwhile is noticed. */
export const manifestAnnotation = 'sluice.dev/manifest'
export const manifestManager = 'sluice-manifests'
/** Editors write in several steps. */
const quietMs = 100
/** Not every file system tells of changes, and somebody may have deleted an object. */
const rescanMs = 30_000
const suffix = /\.(ya?ml|json)$/

interface FileState {
  readonly source: string
  /** Keys of the objects of its last good content. */
  readonly keys: ReadonlySet<string>
  readonly problems: readonly ManifestProblem[]
}

/** A file that is to be applied, and what speaks against it. */
interface Trial {
  readonly file: string
  readonly source: string
  readonly reading: ParsedManifest
  readonly problems: ManifestProblem[]
}

export async function watchManifests(options: ManifestOptions): Promise<ManifestFolder> {
  const folder = new Folder(options)
  await folder.rescan()
  folder.watch()
  return folder
}

class Folder implements ManifestFolder {
  readonly #options: ManifestOptions
  #files = new Map<string, FileState>()
  #running: Promise<void> | undefined
  #again = false
  #watcher: FSWatcher | undefined
  #quiet: Timer | undefined
  #periodic: Timer | undefined
  #unreadable: ManifestProblem | undefined
  #closed = false

  constructor(options: ManifestOptions) {
    this.#options = options
    for (const [file, keys] of this.#remembered()) this.#files.set(file, { source: '', keys, problems: [] })
  }

  problems(): readonly ManifestProblem[] {
    const own = this.#unreadable === undefined ? [] : [this.#unreadable]
    return [...own, ...[...this.#files.values()].flatMap(({ problems }) => problems)]
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
    if (this.#running !== undefined) {
      this.#again = true
      return this.#running
    }
    this.#running = (async () => {
      do {
        this.#again = false
        await this.#scan()
      } while (this.#again && !this.#closed)
    })().finally(() => {
      this.#running = undefined
    })
    return this.#running
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#unwatch()
    this.#quiet?.cancel()
    this.#periodic?.cancel()
    await this.#running
  }

  async #scan(): Promise<void> {
    const { directory, registry, log } = this.#options
    let found: ReadonlyMap<string, Content>
    try {
      found = await readAll(directory)
      this.#unreadable = undefined
    } catch (error) {
      const message = describeError(error)
      if (this.#unreadable?.message !== message)
        log.error('Cannot read the manifests; what they said stays', { directory, error: message })
      this.#unreadable = { file: directory, line: 0, field: '', message }
      return
    }
    if (this.#closed) return
    this.#applyAll(found)
    await registry.settled().catch(() => {}) // reported by the registry; the next scan tries again
    this.#options.onChange?.()
  }

  /** In one turn: nobody sees half of it. */
  #applyAll(found: ReadonlyMap<string, Content>): void {
    const due = [...found]
      .filter(([file, { source }]) => this.#isDue(file, source))
      .map(([file, content]) => ({ file, source: content.source, reading: readingOf(file, content) }))
    const expected = new Set<string>()
    for (const { reading } of due)
      for (const { resource, name } of reading.manifests) if (resource.plural === 'namespaces') expected.add(name)
    const next = new Map<string, FileState>([...this.#files].filter(([file]) => found.has(file)))
    const trials = due.map((each): Trial => ({ ...each, problems: [...each.reading.problems] }))
    this.#judge(trials, next, expected)
    const first = ({ resource }: Manifest) => (resource.plural === 'namespaces' ? 0 : 1)
    // Namespaces of all files before what is to be in them.
    for (const stage of [0, 1]) {
      for (const trial of trials) {
        if (trial.problems.length === 0)
          trial.problems.push(
            ...this.#apply(
              trial.file,
              trial.reading.manifests.filter((manifest) => first(manifest) === stage),
            ),
          )
      }
    }
    for (const { file, source, reading, problems } of trials) {
      const old = this.#files.get(file)
      if (problems.length > 0) this.#report(file, problems, old?.problems ?? [])
      const keys = problems.length > 0 ? (old?.keys ?? new Set<string>()) : new Set(reading.manifests.map(keyOf))
      next.set(file, { source, keys, problems })
      if (problems.length === 0) this.#options.log.v(1, 'Manifest applied', { file, objects: keys.size })
    }
    this.#removeLeft(next)
    this.#files = next
  }

  /** Changed, broken the last time, or one of its objects is gone. */
  #isDue(file: string, source: string): boolean {
    const state = this.#files.get(file)
    if (state === undefined || state.source !== source || state.problems.length > 0) return true
    return [...state.keys].some((key) => this.#entry(key) === undefined)
  }

  /** Finds what is wrong with each, and whose an object is that several files speak of. */
  #judge(trials: readonly Trial[], states: ReadonlyMap<string, FileState>, expected: ReadonlySet<string>): void {
    const tried = new Map<Manifest, readonly ManifestProblem[]>()
    const tryOut = (file: string, manifest: Manifest): readonly ManifestProblem[] => {
      const known = tried.get(manifest) ?? this.#put(file, manifest, { dryRun: true, expected })
      tried.set(manifest, known)
      return known
    }
    for (const { file, reading, problems } of trials)
      if (problems.length > 0) problems.push(...reading.manifests.flatMap((manifest) => tryOut(file, manifest)))
    // A file found broken keeps what it has after all, which others may have been given: then all are judged again.
    const allStand = (): boolean => {
      const owners = ownersOf(trials, states)
      for (const { file, reading, problems } of trials.filter((each) => each.problems.length === 0)) {
        const own = new Set<string>()
        for (const manifest of reading.manifests) {
          const key = keyOf(manifest)
          const owner = owners.get(key) ?? file
          if (owner !== file || own.has(key)) problems.push(takenBy(owner, file, manifest))
          else problems.push(...tryOut(file, manifest))
          owners.set(key, owner)
          own.add(key)
        }
        if (problems.length > 0) return false
      }
      return true
    }
    while (!allStand());
  }

  /** All of them; if one fails after all, what was there before is put back. */
  #apply(file: string, manifests: readonly Manifest[]): ManifestProblem[] {
    const before: { place: Place; entry: Entry | undefined }[] = []
    for (const manifest of manifests) {
      const place = placeOf(manifest)
      const entry = this.#options.registry.find(place.resource.plural, place.namespace, place.name)
      before.push({ place, entry })
      const problems = this.#put(file, manifest, { dryRun: false })
      if (problems.length > 0) {
        for (const done of before.reverse()) this.#putBack(done.place, done.entry)
        return problems
      }
    }
    return []
  }

  #putBack({ resource, namespace, name }: Place, entry: Entry | undefined): void {
    const { registry } = this.#options
    const now = registry.find(resource.plural, namespace, name)
    if (now?.version === entry?.version) return
    if (entry === undefined) registry.remove(resource.plural, namespace, name)
    else registry.put(resource.plural, entry.object)
  }

  #put(file: string, manifest: Manifest, more: Pick<WriteOptions, 'dryRun' | 'expected'>): ManifestProblem[] {
    const metadata = metaOf(manifest.body)
    const annotations = { ...child(metadata, 'annotations'), [manifestAnnotation]: file }
    const body = { ...manifest.body, metadata: { ...metadata, annotations } }
    const options: WriteOptions = {
      manager: manifestManager,
      force: true,
      fieldValidation: 'Strict',
      warn: () => {},
      ...more,
    }
    try {
      const place = placeOf(manifest)
      const patch = { type: 'application/apply-patch+yaml', body }
      const { object } = this.#options.writer.patch(place, patch, options)
      // There is no cloud here that would give a service its load balancer's addresses: the file does.
      if (!more.dryRun && isLoadBalanced(manifest, object))
        this.#options.writer.patch({ ...place, subresource: 'status' }, patch, options)
      return []
    } catch (error) {
      if (!(error instanceof StatusError)) throw error
      const causes = Array.isArray(error.refusal.details?.causes)
        ? (error.refusal.details.causes as readonly Cause[])
        : []
      if (causes.length === 0)
        return [{ file, line: manifest.lineOf('metadata.name'), field: '', message: error.message }]
      return causes.map(({ field, message }) => ({
        file,
        line: manifest.lineOf(field ?? ''),
        field: field ?? '',
        message,
      }))
    }
  }

  #removeLeft(next: ReadonlyMap<string, FileState>): void {
    const wanted = new Set([...next.values()].flatMap(({ keys }) => [...keys]))
    for (const { keys } of this.#files.values()) {
      for (const key of keys) {
        const entry = wanted.has(key) ? undefined : this.#entry(key)
        if (entry === undefined || child(metaOf(entry.object), 'annotations')[manifestAnnotation] === undefined)
          continue
        const resource = findKind(text(entry.object, 'apiVersion'), text(entry.object, 'kind')) as ServedResource
        try {
          this.#options.writer.remove(
            { resource, namespace: namespaceOf(entry.object), name: nameOf(entry.object), subresource: '' },
            { dryRun: false },
          )
        } catch (error) {
          // A protected namespace stays, whatever the files say.
          this.#options.log.warn('An object of a removed manifest stays', { object: key, error: describeError(error) })
        }
      }
    }
  }

  #report(file: string, problems: readonly ManifestProblem[], old: readonly ManifestProblem[]): void {
    const known = new Set(old.map((problem) => JSON.stringify(problem)))
    for (const problem of problems.filter((each) => !known.has(JSON.stringify(each)))) {
      const { line, field, message } = problem
      this.#options.log.error('A manifest is broken; its last good state stays', { file, line, field, error: message })
    }
  }

  #entry(key: string): Entry | undefined {
    const [plural = '', namespace = '', name = ''] = key.split(' ')
    return this.#options.registry.find(plural, namespace, name)
  }

  /** What an earlier process applied. */
  #remembered(): ReadonlyMap<string, ReadonlySet<string>> {
    const files = new Map<string, Set<string>>()
    for (const plural of new Set(resources.map((each) => each.plural))) {
      for (const { object } of this.#options.registry.list(plural)) {
        const file = child(metaOf(object), 'annotations')[manifestAnnotation]
        if (typeof file !== 'string') continue
        const keys = files.get(file) ?? new Set()
        files.set(file, keys.add(`${plural} ${namespaceOf(object)} ${nameOf(object)}`))
      }
    }
    return files
  }
}

const isLoadBalanced = ({ resource, body }: Manifest, object: Json): boolean =>
  resource.plural === 'services' &&
  [body, object].some((one) => Object.keys(child(child(one, 'status'), 'loadBalancer')).length > 0)

const keyOf = ({ resource, namespace, name }: Manifest): string => `${resource.plural} ${namespace} ${name}`
const placeOf = ({ resource, namespace, name }: Manifest): Place => ({ resource, namespace, name, subresource: '' })

/** Files keep the objects of their last good content, unless their new content is good and does without. */
function ownersOf(trials: readonly Trial[], states: ReadonlyMap<string, FileState>): Map<string, string> {
  const owners = new Map<string, string>()
  const good = new Map(trials.filter(({ problems }) => problems.length === 0).map((trial) => [trial.file, trial]))
  for (const [file, { keys }] of states) {
    const trial = good.get(file)
    const named = trial === undefined ? keys : new Set(trial.reading.manifests.map(keyOf))
    for (const key of keys) if (named.has(key)) owners.set(key, file)
  }
  return owners
}

const takenBy = (owner: string, file: string, manifest: Manifest): ManifestProblem => ({
  file,
  line: manifest.lineOf('metadata.name'),
  field: 'metadata.name',
  message: `${keyOf(manifest)} is already in ${owner}`,
})

interface Content {
  readonly source: string
  /** Why it could not be read; '' if it could. */
  readonly failure: string
}

const readingOf = (file: string, { source, failure }: Content): ParsedManifest =>
  failure === ''
    ? readManifests(file, source)
    : { manifests: [], problems: [{ file, line: 1, field: '', message: failure }] }

async function readAll(directory: string): Promise<ReadonlyMap<string, Content>> {
  const entries = await readdir(directory, { withFileTypes: true })
  const names = entries
    .filter((entry) => !entry.isDirectory() && suffix.test(entry.name) && !entry.name.startsWith('.'))
    .map((entry) => entry.name)
  const found = new Map<string, Content>()
  for (const name of names.sort()) {
    try {
      found.set(name, { source: await readFile(join(directory, name), 'utf8'), failure: '' })
    } catch (error) {
      // Removed while we looked; else it is there, and only we cannot read it.
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT')
        found.set(name, { source: '', failure: describeError(error) })
    }
  }
  return found
}
