// The types of the configuration, derived from the settings table, and the conversion between the file format v1alpha1 and the form that
// the proxy uses. Pure.

import type { Value } from './codecs.ts'
import { type FieldTree, type GivenLeaf, getFileDefault, isZero, type ValidLeaf, writeValue } from './setting.ts'
import { type FieldRow, fieldSettings } from './settings-table.ts'

export const apiVersion = 'kubeproxy.config.k8s.io/v1alpha1'
export const documentKind = 'KubeProxyConfiguration'

/** KubeProxyConfiguration v1alpha1 with every default in it. Durations are in ms. */
export type Document = FieldTree<GivenLeaf<FieldRow>>
type ValidDocument = FieldTree<ValidLeaf<FieldRow>>

/** Settings that v1alpha1 repeats in the block of each mode. The proxy uses those of one block. */
interface ModeSettings {
  readonly syncPeriod: number
  readonly minSyncPeriod: number
  readonly masqueradeAll: boolean
}

type Block = 'iptables' | 'ipvs' | 'nftables'

/** A document as the proxy uses it. A field that is not named here stays where the document has it. */
type Resolved<D extends Document> = Omit<D, Block | 'clusterCIDR' | 'resourceContainer'> & {
  readonly [B in Block]: Omit<D[B], keyof ModeSettings>
} & ModeSettings & {
    /** The bit in the block of the mode. */
    readonly masqueradeBit: number
    readonly clusterCIDRs: readonly string[]
  }

/** The configuration before validation: a field that takes one of several words may hold any string. */
export type Unchecked = Resolved<Document>

/** The configuration, valid in every field. */
export type Config = Resolved<ValidDocument>

/**
 * Builds a document from values by path; a field without a value has its default. The cast holds because the loop sets exactly the paths of
 * the rows that `Document` is derived from, to values of their codecs.
 */
export function makeDocument(values: ReadonlyMap<string, Value>): Document {
  const tree = {}
  for (const row of fieldSettings) setPath(tree, row.path, values.get(row.path) ?? getFileDefault(row))
  return tree as Document
}

/** Name of the block in v1alpha1 that holds the sync periods of a mode. */
export const findPeriodBlock = (mode: string): Block => (mode === 'ipvs' || mode === 'nftables' ? mode : 'iptables')

export const findMasqueradeBlock = (mode: string): 'nftables' | 'iptables' => (mode === 'nftables' ? mode : 'iptables')

export function fromV1alpha1(document: Document): Unchecked {
  const { clusterCIDR, resourceContainer: _, ...fields } = document
  const { syncPeriod, minSyncPeriod } = document[findPeriodBlock(document.mode)]
  const { masqueradeAll, masqueradeBit } = document[findMasqueradeBlock(document.mode)]
  return {
    ...fields,
    iptables: omitModeSettings(document.iptables),
    ipvs: omitModeSettings(document.ipvs),
    nftables: omitModeSettings(document.nftables),
    syncPeriod,
    minSyncPeriod,
    masqueradeAll,
    masqueradeBit,
    clusterCIDRs: clusterCIDR === '' ? [] : clusterCIDR.split(','),
  }
}

function omitModeSettings<B extends Partial<ModeSettings>>(block: B): Omit<B, keyof ModeSettings> {
  const { syncPeriod: _sync, minSyncPeriod: _min, masqueradeAll: _all, ...rest } = block
  return rest
}

/** The configuration as v1alpha1 shows it, with sorted keys. As in kube-proxy, the periods of unused modes are 0s. */
export function toV1alpha1(config: Unchecked): Record<string, unknown> {
  const { clusterCIDRs, iptables, ipvs, nftables, ...fields } = config
  const { syncPeriod, minSyncPeriod, masqueradeAll } = config
  const modeSettings = (block: Block): ModeSettings => ({
    ...(block === findPeriodBlock(config.mode) ? { syncPeriod, minSyncPeriod } : { syncPeriod: 0, minSyncPeriod: 0 }),
    masqueradeAll: block === findMasqueradeBlock(config.mode) && masqueradeAll,
  })
  return writeDocument({
    ...fields,
    iptables: { ...modeSettings('iptables'), ...iptables },
    ipvs: { ...modeSettings('ipvs'), ...ipvs },
    nftables: { ...modeSettings('nftables'), ...nftables },
    clusterCIDR: clusterCIDRs.join(','),
    resourceContainer: '',
  })
}

function writeDocument(document: Document): Record<string, unknown> {
  const written: [string, unknown][] = [
    ['apiVersion', apiVersion],
    ['kind', documentKind],
  ]
  for (const row of fieldSettings) {
    // A document has a value of the row's codec at the path of every row.
    const value = getPath(document, row.path) as Value
    if (row.omitted && (isZero(value) || value === row.default)) continue
    written.push([row.path, writeValue(row, value)])
  }
  const tree: Record<string, unknown> = {}
  for (const [path, value] of written.sort(([a], [b]) => (a < b ? -1 : 1))) setPath(tree, path, value)
  return tree
}

type Tree = { [key: string]: unknown }

/** Sets a value by dotted path, and makes the objects on the way. */
export function setPath(tree: object, path: string, value: unknown): void {
  const [head = '', ...rest] = path.split('.')
  const at = tree as Tree
  if (rest.length === 0) at[head] = value
  else {
    at[head] ??= {}
    setPath(at[head] as object, rest.join('.'), value)
  }
}

export const getPath = (tree: object, path: string): unknown =>
  path.split('.').reduce<unknown>((at, key) => (at as Tree | undefined)?.[key], tree)
