// Turns the files of a directory into objects: a changed file is applied as a whole or not at all, and a removed file removes its objects.

import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { applyPatchType } from '../requests/patch-types.ts'
import type { ObjectPath, ObjectWriteOptions, ObjectWriter } from '../requests/writes.ts'
import { StatusError } from '../schema/api-status.ts'
import { getObject, type Json } from '../schema/json.ts'
import { annotationsOf, metadataOf, nameOf, namespaceOf } from '../schema/object-metadata.ts'
import { getResource, resources } from '../schema/served-resources.ts'
import type { Entry } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import { invalidFile, type Manifest, type ManifestProblem, type ParsedManifest, parseManifests } from './parse.ts'

export interface ApplierOptions {
  readonly writer: ObjectWriter
  readonly registry: Registry
  readonly log: Logger
}

export interface FileContent {
  readonly source: string
  /** Why the file could not be read; '' if it could. */
  readonly failure: string
}

/** Names the file that an object came from. It survives restarts, so that a file that was removed in between is noticed. */
const manifestAnnotation = 'sluice.dev/manifest'
export const manifestManager = 'sluice-manifests'

interface FileState {
  readonly source: string
  /** Keys of the objects of its last valid content. */
  readonly keys: ReadonlySet<string>
  readonly problems: readonly ManifestProblem[]
}

/** A file to apply, with the problems that were found so far. */
interface ChangedFile {
  readonly file: string
  readonly source: string
  readonly parsed: ParsedManifest
  readonly problems: ManifestProblem[]
}

/** Applies a manifest without storing anything, and returns what the server would refuse. */
type DryRun = (file: string, manifest: Manifest) => readonly ManifestProblem[]

export class ManifestApplier {
  readonly #options: ApplierOptions
  #files: Map<string, FileState>

  constructor(options: ApplierOptions) {
    this.#options = options
    this.#files = this.#recoverFiles()
  }

  problems(): readonly ManifestProblem[] {
    return [...this.#files.values()].flatMap(({ problems }) => problems)
  }

  /** Runs within one turn of the event loop, so that no client sees half of it. */
  applyAll(contents: ReadonlyMap<string, FileContent>): void {
    const changed = [...contents]
      .filter(([file, { source }]) => this.#needsApply(file, source))
      .map(([file, content]) => parseFile(file, content))
    const states = new Map([...this.#files].filter(([file]) => contents.has(file)))
    this.#findProblems(changed, states)
    // All namespaces come before the objects in them.
    this.#applyValid(changed, (manifest) => isNamespace(manifest))
    this.#applyValid(changed, (manifest) => !isNamespace(manifest))
    for (const each of changed) states.set(each.file, this.#finish(each))
    this.#removeObsolete(states)
    this.#files = states
  }

  /** True if the file changed, had problems the last time, or lost an object. */
  #needsApply(file: string, source: string): boolean {
    const state = this.#files.get(file)
    if (state === undefined || state.source !== source || state.problems.length > 0) return true
    return [...state.keys].some((key) => this.#find(key) === undefined)
  }

  /** Tries each file without storing anything, and decides which file an object belongs to if several contain it. */
  #findProblems(changed: readonly ChangedFile[], states: ReadonlyMap<string, FileState>): void {
    const manifests = changed.flatMap(({ parsed }) => parsed.manifests)
    const pendingNamespaces = new Set(manifests.filter(isNamespace).map(({ name }) => name))
    const results = new Map<Manifest, readonly ManifestProblem[]>()
    const dryRun: DryRun = (file, manifest) => {
      const result = results.get(manifest) ?? this.#put(file, manifest, { dryRun: true, pendingNamespaces })
      results.set(manifest, result)
      return result
    }
    for (const { file, parsed, problems } of changed.filter(hasProblems))
      problems.push(...parsed.manifests.flatMap((manifest) => dryRun(file, manifest)))
    // A file with a problem keeps its old objects, which the check has given to other files: then all are checked again.
    while (!checkFiles(changed, states, dryRun));
  }

  #applyValid(changed: readonly ChangedFile[], isIncluded: (manifest: Manifest) => boolean): void {
    for (const { file, parsed, problems } of changed.filter((each) => !hasProblems(each)))
      problems.push(...this.#applyFile(file, parsed.manifests.filter(isIncluded)))
  }

  /** Applies all manifests; if one of them fails in spite of the dry run, the objects from before are restored. */
  #applyFile(file: string, manifests: readonly Manifest[]): readonly ManifestProblem[] {
    const before: { path: ObjectPath; entry: Entry | undefined }[] = []
    for (const manifest of manifests) {
      const path = pathOf(manifest)
      before.unshift({ path, entry: this.#options.registry.find(path.resource.plural, path.namespace, path.name) })
      const problems = this.#put(file, manifest, { dryRun: false })
      if (problems.length === 0) continue
      for (const each of before) this.#restore(each.path, each.entry)
      return problems
    }
    return []
  }

  #restore({ resource, namespace, name }: ObjectPath, entry: Entry | undefined): void {
    const { registry } = this.#options
    if (registry.find(resource.plural, namespace, name)?.version === entry?.version) return
    if (entry === undefined) registry.remove(resource.plural, namespace, name)
    else registry.put(resource.plural, entry.object)
  }

  #put(
    file: string,
    manifest: Manifest,
    mode: Pick<ObjectWriteOptions, 'dryRun' | 'pendingNamespaces'>,
  ): readonly ManifestProblem[] {
    const annotations = { ...annotationsOf(manifest.body), [manifestAnnotation]: file }
    const body = { ...manifest.body, metadata: { ...metadataOf(manifest.body), annotations } }
    const options: ObjectWriteOptions = {
      manager: manifestManager,
      force: true,
      fieldValidation: 'Strict',
      warn: () => {},
      ...mode,
    }
    const path = pathOf(manifest)
    const patch = { type: applyPatchType, body }
    try {
      const { object } = this.#options.writer.patch(path, patch, options)
      // No cloud controller assigns the addresses of load balancers here: the file does, in its status.
      if (!mode.dryRun && (hasIngress(manifest, manifest.body) || hasIngress(manifest, object)))
        this.#options.writer.patch({ ...path, subresource: 'status' }, patch, options)
      return []
    } catch (error) {
      if (!(error instanceof StatusError)) throw error
      return toProblems(file, manifest, error)
    }
  }

  /** Reports the outcome, and returns the file's new state. */
  #finish({ file, source, parsed, problems }: ChangedFile): FileState {
    const old = this.#files.get(file)
    if (problems.length > 0) {
      this.#logNew(problems, old?.problems ?? [])
      return { source, keys: old?.keys ?? new Set(), problems }
    }
    const keys = new Set(parsed.manifests.map(keyOf))
    this.#options.log.v(1, 'Manifest applied', { file, objects: keys.size })
    return { source, keys, problems }
  }

  #logNew(problems: readonly ManifestProblem[], old: readonly ManifestProblem[]): void {
    const known = new Set(old.map((problem) => JSON.stringify(problem)))
    for (const problem of problems.filter((each) => !known.has(JSON.stringify(each)))) {
      const { file, line, field, message } = problem
      this.#options.log.error('A manifest is invalid; the objects of its last valid content stay', {
        file,
        line,
        field,
        error: message,
      })
    }
  }

  /** Deletes the objects that no file contains any more. */
  #removeObsolete(states: ReadonlyMap<string, FileState>): void {
    const wanted = new Set([...states.values()].flatMap(({ keys }) => [...keys]))
    const obsolete = [...this.#files.values()].flatMap(({ keys }) => [...keys]).filter((key) => !wanted.has(key))
    for (const key of obsolete) {
      const entry = this.#find(key)
      if (entry === undefined || annotationsOf(entry.object)[manifestAnnotation] === undefined) continue
      try {
        this.#options.writer.delete(parseKey(key), { dryRun: false })
      } catch (error) {
        // Some objects cannot be deleted, such as the namespace `default`.
        this.#options.log.warn('An object of a removed manifest stays', { object: key, error: describeError(error) })
      }
    }
  }

  #find(key: string): Entry | undefined {
    const { resource, namespace, name } = parseKey(key)
    return this.#options.registry.find(resource.plural, namespace, name)
  }

  /** The files that an earlier process applied, by the annotations of their objects. */
  #recoverFiles(): Map<string, FileState> {
    const files = new Map<string, Set<string>>()
    for (const plural of new Set(resources.map((each) => each.plural))) {
      for (const { object } of this.#options.registry.list(plural)) {
        const file = annotationsOf(object)[manifestAnnotation]
        if (typeof file !== 'string') continue
        const keys = files.get(file) ?? new Set()
        files.set(file, keys.add(`${plural} ${namespaceOf(object)} ${nameOf(object)}`))
      }
    }
    return new Map([...files].map(([file, keys]) => [file, { source: '', keys, problems: [] }]))
  }
}

function parseFile(file: string, { source, failure }: FileContent): ChangedFile {
  const parsed = failure === '' ? parseManifests(file, source) : invalidFile(file, failure)
  return { file, source, parsed, problems: [...parsed.problems] }
}

const hasProblems = ({ problems }: ChangedFile): boolean => problems.length > 0
const isNamespace = ({ resource }: Manifest): boolean => resource.plural === 'namespaces'

/** The status of a service with a load balancer; the object has it before the file drops it. */
const hasIngress = ({ resource }: Manifest, object: Json): boolean =>
  resource.plural === 'services' && Object.keys(getObject(getObject(object, 'status'), 'loadBalancer')).length > 0

/** `services default web`; the namespace is '' for resources without namespaces. */
const keyOf = ({ resource, namespace, name }: Manifest): string => `${resource.plural} ${namespace} ${name}`
const pathOf = ({ resource, namespace, name }: Manifest): ObjectPath => ({ resource, namespace, name, subresource: '' })

function parseKey(key: string): ObjectPath {
  const [plural = '', namespace = '', name = ''] = key.split(' ')
  return { resource: getResource(plural), namespace, name, subresource: '' }
}

/** Checks the files without problems in order. Returns false as soon as one of them has a problem. */
function checkFiles(changed: readonly ChangedFile[], states: ReadonlyMap<string, FileState>, dryRun: DryRun): boolean {
  const owners = findOwners(changed, states)
  for (const each of changed.filter((candidate) => !hasProblems(candidate))) {
    each.problems.push(...checkFile(each, owners, dryRun))
    if (hasProblems(each)) return false
  }
  return true
}

function checkFile(
  { file, parsed }: ChangedFile,
  owners: Map<string, string>,
  dryRun: DryRun,
): readonly ManifestProblem[] {
  const seen = new Set<string>()
  return parsed.manifests.flatMap((manifest) => {
    const key = keyOf(manifest)
    const owner = owners.get(key) ?? file
    owners.set(key, owner)
    const isDuplicate = owner !== file || seen.has(key)
    seen.add(key)
    return isDuplicate ? [duplicateProblem(owner, file, manifest)] : dryRun(file, manifest)
  })
}

/** The file of each object, by its key. A file keeps the objects of its last valid content, unless its valid new content lacks them. */
function findOwners(changed: readonly ChangedFile[], states: ReadonlyMap<string, FileState>): Map<string, string> {
  const owners = new Map<string, string>()
  const valid = new Map(changed.filter((each) => !hasProblems(each)).map((each) => [each.file, each]))
  for (const [file, { keys }] of states) {
    const next = valid.get(file)
    const nextKeys = next === undefined ? keys : new Set(next.parsed.manifests.map(keyOf))
    for (const key of keys) if (nextKeys.has(key)) owners.set(key, file)
  }
  return owners
}

const duplicateProblem = (owner: string, file: string, manifest: Manifest): ManifestProblem => ({
  file,
  line: manifest.lineOf('metadata.name'),
  field: 'metadata.name',
  message: `${keyOf(manifest)} is already in ${owner}`,
})

function toProblems(file: string, manifest: Manifest, error: StatusError): readonly ManifestProblem[] {
  const causes = error.refusal.details?.causes ?? []
  if (causes.length === 0) return [{ file, line: manifest.lineOf('metadata.name'), field: '', message: error.message }]
  return causes.map(({ field = '', message }) => ({ file, line: manifest.lineOf(field), field, message }))
}
