// SluiceConfiguration v1alpha1: our own settings, in a file beside KubeProxyConfiguration, so that kube-proxy's own file stays portable. Pure.

import { deepEqual } from '../lib/equal.ts'
import { ProxyError } from '../lib/errors.ts'
import { canonicalIp, type Family, familyOf } from '../lib/ip.ts'
import type { Value } from './codecs.ts'
import { getPath, setPath } from './configuration.ts'
import { type DecodedConfig, decode } from './decode.ts'
import { type FieldTree, getFileDefault, showValue, type ValidLeaf } from './setting.ts'
import { type SluiceRow, sluiceSettingByPath, sluiceSettings } from './sluice-table.ts'

const apiVersion = 'sluice/v1alpha1'
const kind = 'SluiceConfiguration'

/** Every setting, valid, with defaults filled in. Durations are in ms. */
export type SluiceConfig = FieldTree<ValidLeaf<SluiceRow>>

export const defaultSluiceConfig = (): SluiceConfig => makeConfig(new Map())

/** Throws a ProxyError that names file, line and field of every problem. An unknown field is a problem, since only Sluice reads this file. */
export function loadSluiceConfig(file: string, text: string): SluiceConfig {
  const decoded = decode(file, text, { apiVersion, kind, settings: sluiceSettingByPath })
  const problems = [...decoded.warnings, ...sluiceSettings.flatMap((row) => problemsOf(row, file, decoded))]
  if (problems.length > 0) throw new ProxyError('config', problems.join('; '))
  return makeConfig(decoded.values)
}

function problemsOf(row: SluiceRow, file: string, { values, lines }: DecodedConfig): readonly string[] {
  const value = values.get(row.path)
  if (value === undefined) return []
  const refuse = (allowed: string) => [
    `${file}:${lines.get(row.path)}: ${row.path}: given ${JSON.stringify(value)}, allowed: ${allowed}`,
  ]
  if (row.words !== undefined && !row.words.some((word) => word === value)) return refuse(row.words.join(', '))
  if (row.path === 'canary.addresses' && !areAddresses(value)) return refuse('IP addresses, at most one per family')
  if (typeof value === 'number' && value <= 0) return refuse('a value greater than 0')
  return []
}

function areAddresses(value: Value): boolean {
  const families = Array.isArray(value) ? value.map((text) => familyOfText(String(text))) : [undefined]
  return !families.includes(undefined) && new Set(families).size === families.length
}

const familyOfText = (text: string): Family | undefined => (canonicalIp(text) === text ? familyOf(text) : undefined)

/** The cast holds because the loop sets exactly the paths of the rows that the type is derived from, to values that were checked. */
function makeConfig(values: ReadonlyMap<string, Value>): SluiceConfig {
  const tree = {}
  for (const row of sluiceSettings) setPath(tree, row.path, values.get(row.path) ?? getFileDefault(row))
  return tree as SluiceConfig
}

export interface Replaced {
  /** The fields whose new values take effect. */
  readonly changed: readonly string[]
  /** The fields whose new values need a restart. */
  readonly waiting: readonly string[]
}

/**
 * Takes over the new values of those fields that may change while the proxy runs. Changes `config` in place, so
 * that every holder of a part of it reads the new values.
 */
export function replaceLiveFields(config: SluiceConfig, next: SluiceConfig): Replaced {
  const differing = sluiceSettings.filter(({ path }) => !deepEqual(getPath(config, path), getPath(next, path)))
  const changed = differing.filter((row) => row.live === true)
  for (const { path } of changed) setPath(config, path, getPath(next, path))
  return {
    changed: changed.map(({ path }) => path),
    waiting: differing.filter((row) => row.live !== true).map(({ path }) => path),
  }
}

/** The table of docs/sluice-config.md; a test keeps the file equal to it. */
export function formatSluiceConfigDocs(): string {
  return [
    '# SluiceConfiguration',
    '',
    'Settings that kube-proxy does not have are in a file of their own, so that the KubeProxyConfiguration stays one that kube-proxy reads, too.',
    '`--sluice-config FILE` names it, or the environment variable `SLUICE_CONFIG` where the command line should stay as it is. Without the',
    'file every setting has its default. An unknown field, a wrong type or a value that is not allowed is an error that names file, line and field.',
    '',
    '```yaml',
    `apiVersion: ${apiVersion}`,
    `kind: ${kind}`,
    'limits:',
    '  endpointsPerService: 50000',
    '```',
    '',
    'The proxy reads the file again when it changes. New values of the fields with "at once" take effect without a restart and without',
    'interrupting connections; the others need a restart, and the log says so. A new file that is not valid is reported in the log and in',
    '`sluice_settings_refused`, and the old settings stay.',
    '',
    '| field | default | a change takes effect | meaning |',
    '| --- | --- | --- | --- |',
    ...sluiceSettings.map(describeRow),
    '',
    `Generated from \`src/config/sluice-table.ts\`: run \`npm run docs\` after a change.`,
    '',
  ].join('\n')
}

const describeRow = (row: SluiceRow): string =>
  `| \`${row.path}\` | ${showValue(row, row.default)} | ${row.live === true ? 'at once' : 'at a restart'} | ${row.help} |`
