// Reads the files and directories that `sluice plan` is given, and selects the objects that can change where packets go.

import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import {
  type Manifest,
  type ManifestProblem,
  type MixedManifest,
  parseMixedManifests,
  type UnservedObject,
} from '../../apiserver/manifests/parse.ts'
import type { StatusCause } from '../../apiserver/schema/api-status.ts'
import { ProxyError } from '../../lib/errors.ts'
import { describeFileError } from '../text-file.ts'

/** An object of a file. */
export interface LocatedManifest {
  readonly file: string
  readonly manifest: Manifest
}

export interface ChangedObjects {
  /** The objects in the order in which they are applied. */
  readonly objects: readonly LocatedManifest[]
  /** One sentence about each object that was ignored. */
  readonly remarks: readonly string[]
}

/** Throws a ProxyError 'manifests' with the file, line and field of each problem, or if no object is of one of the kinds. */
export function readChange(paths: readonly string[], kinds: readonly string[]): ChangedObjects {
  const files = paths.flatMap(listFiles)
  const parsed = files.map((file) => parseMixedManifests(nameFile(file), readText(file)))
  const problems = parsed.flatMap((each) => each.problems)
  if (problems.length > 0) throw refuse(problems.map(describeProblem))
  const all = files.flatMap((file, i) =>
    (parsed[i] as MixedManifest).manifests.map((manifest) => ({ file: nameFile(file), manifest })),
  )
  const isSelected = ({ manifest }: LocatedManifest) => kinds.includes(manifest.resource.kind)
  const remarks = [
    ...parsed.flatMap(({ unserved }) => unserved.map(describeUnserved)),
    ...all.filter((each) => !isSelected(each)).map(describeIgnored),
  ]
  const objects = all.filter(isSelected)
  if (objects.length === 0) {
    throw new ProxyError('manifests', [`${paths.join(', ')}: there is no ${kinds.join(' or ')}`, ...remarks].join('; '))
  }
  refuseDuplicates(objects)
  const order = ({ manifest }: LocatedManifest) => kinds.indexOf(manifest.resource.kind)
  return { objects: [...objects].sort((a, b) => order(a) - order(b)), remarks }
}

/** Returns the files of a directory, as kubectl selects them. `-` is standard input. */
function listFiles(path: string): readonly string[] {
  try {
    if (path === '-' || !statSync(path).isDirectory()) return [path]
    const names = readdirSync(path, { withFileTypes: true })
      .filter((entry) => !entry.isDirectory() && /\.(ya?ml|json)$/.test(entry.name))
      .map(({ name }) => join(path, name))
    if (names.length === 0) throw new ProxyError('manifests', `${path}: the directory has no .yaml, .yml or .json file`)
    return names.sort()
  } catch (error) {
    throw error instanceof ProxyError ? error : unreadable(path, error)
  }
}

function readText(file: string): string {
  try {
    return readFileSync(file === '-' ? 0 : file, 'utf8')
  } catch (error) {
    throw unreadable(nameFile(file), error)
  }
}

const unreadable = (path: string, cause: unknown): ProxyError =>
  new ProxyError('manifests', `cannot read ${path}: ${describeFileError(cause)}`)

const nameFile = (file: string): string => (file === '-' ? 'standard input' : file)

const describeProblem = ({ file, line, field, message }: ManifestProblem): string =>
  `${file}:${line}: ${field === '' ? '' : `${field}: `}${message}`

function refuseDuplicates(objects: readonly LocatedManifest[]): void {
  const seen = new Map<string, LocatedManifest>()
  for (const each of objects) {
    const { resource } = each.manifest
    const key = `${resource.kind} ${keyOf(each.manifest)}`
    const first = seen.get(key)
    if (first !== undefined) {
      const where = `${first.file}:${first.manifest.lineOf('metadata.name')}`
      throw refuse([`${locate(each, 'metadata.name')}: ${key} is already in ${where}`])
    }
    seen.set(key, each)
  }
}

function describeUnserved({ file, line, apiVersion, kind, namespace, name }: UnservedObject): string {
  const object = name === '' ? kind : `${kind} ${namespace || 'default'}/${name}`
  const isKustomization = apiVersion.startsWith('kustomize.config.k8s.io/')
  const why = isKustomization
    ? 'render it first, as with kubectl kustomize DIR | sluice plan -f -'
    : 'it does not decide where packets of services go'
  return `${file}:${line}: ${object} is ignored: ${why}`
}

function describeIgnored(located: LocatedManifest): string {
  const { resource } = located.manifest
  const why =
    resource.kind === 'Pod'
      ? 'pods matter only through the EndpointSlices that the cluster makes from them'
      : 'it does not decide where packets of services go'
  return `${locate(located, 'kind')}: ${resource.kind} ${keyOf(located.manifest)} is ignored: ${why}`
}

/** `namespace/name`; the name alone for an object without a namespace. */
export const keyOf = ({ namespace, name }: Pick<Manifest, 'namespace' | 'name'>): string =>
  namespace === '' ? name : `${namespace}/${name}`

const locate = ({ file, manifest }: LocatedManifest, field: string): string => `${file}:${manifest.lineOf(field)}`

/** What the API server says about an object that it refuses. */
export interface ApiRefusal {
  readonly message: string
  readonly causes: readonly StatusCause[]
}

/** Returns one line for each wrong field, in the words of the API server. */
export function describeRefusal(located: LocatedManifest, { message, causes }: ApiRefusal): readonly string[] {
  const named = causes.filter(({ field = '' }) => field !== '')
  const separator = ' is invalid: '
  const end = message.indexOf(separator)
  if (named.length === 0 || end < 0) return [`${locate(located, 'metadata.name')}: ${message}`]
  const subject = message.slice(0, end + separator.length)
  return named.map(({ field = '', message: why }) => `${locate(located, field)}: ${subject}${field}: ${why}`)
}

/** One line for each problem. */
export const refuse = (lines: readonly string[]): ProxyError => new ProxyError('manifests', lines.join('\n'))
