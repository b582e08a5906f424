// One row of the settings table, and the types that follow from the rows: values by flag name, and the tree of a configuration file. Pure.

import { codecs, type Kind, type Kinds, type Value } from './codecs.ts'

interface Row<K extends Kind> {
  /** Without the dashes; absent for a field that has no flag. */
  readonly flag?: string
  readonly shorthand?: string
  /** Dotted path in v1alpha1; absent for a flag that has no field. */
  readonly path?: string
  readonly default: Kinds[K]
  /** Default of a field in a file, if it differs from the flag's default. */
  readonly fileDefault?: Kinds[K]
  /** If true, a zero value (0, false, empty) in a file is kept. Otherwise it means "not given". */
  readonly keepsZero?: boolean
  /** If true, the field is left out of a written configuration while it has its default. */
  readonly omitted?: boolean
  /** If true, the flag counts even when a configuration file is given. */
  readonly beatsFile?: boolean
  /** The only words that validation allows. They become the type of the field in a valid configuration. */
  readonly words?: readonly string[]
  /** If true, a new value in the file takes effect while the proxy runs. */
  readonly live?: boolean
  /** Type in usage texts, if it differs from the codec's. */
  readonly label?: string
  readonly help: string
  /** Text of the warning that is logged when the setting is used. */
  readonly deprecated?: string
}

export interface Setting extends Row<Kind> {
  readonly kind: Kind
}

export interface FieldSetting extends Setting {
  readonly path: string
}

export interface FlagSetting extends Setting {
  readonly flag: string
}

/** A setting whose flag, path and words are literal types. A part that the row does not have is `never`. */
export interface TypedSetting<
  K extends Kind = Kind,
  Flag extends string = string,
  Path extends string = string,
  Word extends string = string,
> extends Setting {
  readonly kind: K
  readonly flag?: Flag
  readonly path?: Path
  readonly words?: readonly Word[]
}

/** Declares a field of the configuration file, with or without a flag. */
export const declareField = <
  const K extends Kind,
  const Path extends string,
  const Flag extends string = never,
  const Word extends string = never,
>(
  kind: K,
  row: Row<K> & { readonly path: Path; readonly flag?: Flag; readonly words?: readonly Word[] },
): TypedSetting<K, Flag, Path, Word> & { readonly path: Path } => ({ kind, ...row })

/** Declares a flag that has no field in the configuration file. */
export const declareFlag = <const K extends Kind, const Flag extends string>(
  kind: K,
  row: Row<K> & { readonly flag: Flag; readonly path?: never; readonly words?: never },
): TypedSetting<K, Flag, never, never> & { readonly flag: Flag } => ({ kind, ...row })

// ---- Types that follow from the rows. ----

/** Values by flag name. */
export type FlagValues<R extends TypedSetting> = {
  readonly [Row in R as NonNullable<Row['flag']>]: Kinds[Row['kind']]
}

/** The flags of a command line. */
export interface CommandLine<R extends TypedSetting> {
  /** Value of every flag, its default if it was not given. */
  readonly values: FlagValues<R>
  /** Names of the flags that were given. */
  readonly given: ReadonlySet<string>
}

interface Leaf {
  readonly path: string
  readonly value: unknown
}

/** Path and value of each field before validation: a field with `words` may hold any string. */
export type GivenLeaf<R extends TypedSetting> = R extends TypedSetting ? LeafAt<R['path'], Kinds[R['kind']]> : never

/** Path and value of each field after validation: a field with `words` holds one of them. */
export type ValidLeaf<R extends TypedSetting> = R extends TypedSetting ? LeafAt<R['path'], ValidValue<R>> : never

/** One leaf per path: a row that a loop makes has a union of paths. */
type LeafAt<Path, V> = Path extends string ? { readonly path: Path; readonly value: V } : never

type ValidValue<R extends TypedSetting> = [WordOf<R>] extends [never] ? Kinds[R['kind']] : WordOf<R>
type WordOf<R extends TypedSetting> = NonNullable<R['words']>[number]

/** Objects by dotted path: `{ path: 'a.b'; value: number }` becomes `{ a: { b: number } }`. */
export type FieldTree<L extends Leaf> = {
  readonly [Head in HeadOf<L['path']>]: [LeafNamed<L, Head>] extends [never]
    ? FieldTree<LeafBelow<L, Head>>
    : LeafNamed<L, Head>['value']
}

type HeadOf<Path extends string> = Path extends `${infer Head}.${string}` ? Head : Path
type LeafNamed<L extends Leaf, Name extends string> = Extract<L, { readonly path: Name }>
type LeafBelow<L extends Leaf, Head extends string> = L extends { readonly path: `${Head}.${infer Rest}` }
  ? { readonly path: Rest; readonly value: L['value'] }
  : never

// ---- Values of a row, read and written by its codec. ----

/** Parses one use of a flag, whose earlier uses gave `current`. Returns undefined if the text is not allowed. */
export function parseValue(row: Setting, text: string, current: Value, isFirst: boolean): Value | undefined {
  return getCodec(row).parse(text, current, isFirst)
}

/** Reads a plain value from a file. Returns undefined if it has the wrong type. */
export const readValue = (row: Setting, plain: unknown): Value | undefined => getCodec(row).read(plain)

export const showValue = (row: Setting, value: Value): string => getCodec(row).show(value)

export const writeValue = (row: Setting, value: Value): unknown => getCodec(row).write(value)

/** The value of a field that no file gives. */
export const getFileDefault = (row: Setting): Value => row.fileDefault ?? row.default

/** Whether Go would call it a zero value. */
export function isZero(value: Value): boolean {
  if (typeof value === 'object') return Array.isArray(value) ? value.length === 0 : Object.keys(value).length === 0
  return value === 0 || value === '' || value === false
}

interface AnyCodec {
  parse(text: string, current: Value, isFirst: boolean): Value | undefined
  read(plain: unknown): Value | undefined
  show(value: Value): string
  write(value: Value): unknown
}

/** A row's values come from its own codec only, which the compiler cannot follow across the table. */
const getCodec = (row: Setting): AnyCodec => codecs[row.kind] as AnyCodec
