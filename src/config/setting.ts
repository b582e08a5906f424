// The shape of one row of the settings table: a flag, a field of the configuration file, or both at once.

import { codecs, type Kind, type Kinds, type Value } from './values.ts'

interface Row<K extends Kind> {
  /** Without the dashes; absent for a field that has no flag. */
  readonly flag?: string
  readonly shorthand?: string
  /** Dotted path in v1alpha1; absent for a flag that has no field. */
  readonly path?: string
  readonly default: Kinds[K]
  /** The default in a file, where it is another one than the flag's. */
  readonly fileDefault?: Kinds[K]
  /** A file's zero value (0, false, empty) is kept; without this it means "not given". */
  readonly keepsZero?: boolean
  /** Left out of a written configuration while it has its default. */
  readonly omitted?: boolean
  /** The flag counts even when a configuration file is given. */
  readonly beatsFile?: boolean
  readonly label?: string
  readonly help: string
  /** Said as a warning when it is used. */
  readonly deprecated?: string
}

export interface Setting extends Row<Kind> {
  readonly kind: Kind
}

export const setting = <K extends Kind>(kind: K, row: Row<K>): Setting => ({ kind, ...row })

/** One use of a flag on the command line; undefined if the text is not allowed. */
export function parseValue(row: Setting, text: string, current: Value, first: boolean): Value | undefined {
  return codec(row).parse(text, current, first)
}

/** A plain value out of a file; undefined if it has the wrong type. */
export const readValue = (row: Setting, plain: unknown): Value | undefined => codec(row).read(plain)

export const showValue = (row: Setting, value: Value): string => codec(row).show(value)

export const writeValue = (row: Setting, value: Value): unknown => codec(row).write(value)

/** Whether Go would call it a zero value. */
export function isZero(value: Value): boolean {
  if (typeof value === 'object') return Array.isArray(value) ? value.length === 0 : Object.keys(value).length === 0
  return value === 0 || value === '' || value === false
}

interface AnyCodec {
  parse(text: string, current: Value, first: boolean): Value | undefined
  read(plain: unknown): Value | undefined
  show(value: Value): string
  write(value: Value): unknown
}

/** A row's values always come from its own codec, which the types cannot follow across the table. */
const codec = (row: Setting): AnyCodec => codecs[row.kind] as AnyCodec
