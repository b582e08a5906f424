// Reads sections and fields of a kubeconfig file. Every error names the file and the field.

import { readFileSync } from 'node:fs'
import { dirname, isAbsolute, resolve } from 'node:path'
import { parseDocument } from 'yaml'
import { hasErrno, ProxyError, readSystemCode } from '../lib/errors.ts'
import type { PemSource } from './connection.ts'
import { asObject, type JsonObject, joinPath } from './decode/fields.ts'

/** One object of the file, with its path. */
export class KubeconfigSection {
  readonly fields: JsonObject
  /** Name of the kubeconfig. */
  readonly file: string
  readonly #path: string

  constructor(file: string, path: string, fields: JsonObject) {
    this.file = file
    this.#path = path
    this.fields = fields
  }

  /** Opens a file. Throws if it cannot be read or is not a kubeconfig. */
  static open(file: string): KubeconfigSection {
    const document = parseDocument(readText(file, file, ''), { prettyErrors: true })
    const broken = document.errors[0]
    if (broken !== undefined) {
      throw makeKubeconfigError(file, '', `is not valid YAML: ${broken.message.split('\n')[0]}`)
    }
    const root = asObject(document.toJS())
    if (root === undefined) throw makeKubeconfigError(file, '', 'is empty or not a kubeconfig')
    return new KubeconfigSection(file, '', root)
  }

  /** An error about one field, or about the section itself if `name` is ''. */
  makeError(name: string, message: string, cause?: unknown): ProxyError {
    return makeKubeconfigError(this.file, this.joinPath(name), message, cause)
  }

  joinPath(name: string): string {
    return name === '' ? this.#path : joinPath(this.#path, name)
  }

  readText(name: string): string {
    const value = this.fields[name] ?? ''
    if (typeof value === 'string') return value
    // YAML reads an unquoted token or name of digits as a number.
    if (typeof value === 'number') return String(value)
    throw this.makeError(name, 'must be a string')
  }

  readFlag(name: string): boolean {
    const value = this.fields[name] ?? false
    if (typeof value !== 'boolean') throw this.makeError(name, 'must be true or false')
    return value
  }

  readList(name: string): readonly unknown[] {
    const value = this.fields[name] ?? []
    if (!Array.isArray(value)) throw this.makeError(name, 'must be a list')
    return value
  }

  readSection(name: string): KubeconfigSection {
    const value = asObject(this.fields[name] ?? {})
    if (value === undefined) throw this.makeError(name, 'must be an object')
    return new KubeconfigSection(this.file, this.joinPath(name), value)
  }

  /** Returns the inner object of the entry with a name in `clusters`, `users` or `contexts`. Without a name, it is empty. */
  findEntry(list: string, inner: string, name: string): KubeconfigSection {
    const path = `${list}[${name}]`
    if (name === '') return new KubeconfigSection(this.file, `${path}.${inner}`, {})
    const entry = this.readList(list)
      .map(asObject)
      .find((item) => item?.name === name)
    if (entry === undefined) throw this.makeError(list, `has no entry named ${JSON.stringify(name)}`)
    return new KubeconfigSection(this.file, path, entry).readSection(inner)
  }

  /** Reads a path to a file. A relative path is relative to the kubeconfig, not to the working directory. */
  readPath(name: string): string {
    return this.resolvePath(this.readText(name))
  }

  resolvePath(path: string): string {
    return path === '' || isAbsolute(path) ? path : resolve(dirname(resolve(this.file)), path)
  }

  /** Reads the file that a field names. */
  readFile(name: string): string {
    return readText(this.readPath(name), this.file, this.joinPath(name))
  }

  /** Reads a certificate or a key. `name-data` (base64) wins over `name` (a file). */
  readPem(name: string): PemSource | undefined {
    const data = `${name}-data`
    const encoded = this.readText(data)
    if (encoded !== '') return { field: this.joinPath(data), text: Buffer.from(encoded, 'base64').toString('latin1') }
    const file = this.readPath(name)
    return file === '' ? undefined : { field: this.joinPath(name), file }
  }
}

/** Returns the bytes of a certificate or a key of a kubeconfig. */
export const readPem = (source: PemSource, file: string): string =>
  'text' in source ? source.text : readText(source.file, file, source.field)

/** Reads `path`, which `field` of `file` names. */
export function readText(path: string, file: string, field: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    // The message of the system would repeat the path.
    const what = path === file ? 'cannot be read' : `cannot read ${path}`
    throw makeKubeconfigError(
      file,
      field,
      `${what}: ${hasErrno(error, 'ENOENT') ? 'no such file' : readSystemCode(error)}`,
    )
  }
}

export function makeKubeconfigError(file: string, field: string, message: string, cause?: unknown): ProxyError {
  const text = [file, field, message].filter((part) => part !== '').join(': ')
  return new ProxyError('config', text, { cause, fields: { file, field } })
}
