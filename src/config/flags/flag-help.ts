// Formats the settings and flag tables for people: the usage text, and docs/flags.md. Pure.

import { codecs } from '../codecs.ts'
import { type FlagSetting, getFileDefault, type Setting, showValue } from '../setting.ts'
import { fieldSettings } from '../settings-table.ts'
import { flagSettings } from './flag-table.ts'

const width = 100
const indent = 10

export function formatUsage(): string {
  const current = flagSettings.filter((row) => row.deprecated === undefined)
  const old = flagSettings.filter((row) => row.deprecated !== undefined)
  return [
    'The Kubernetes network proxy: forwards connections to Services to their endpoints, on every node.',
    '',
    'Usage:',
    '  kube-proxy [flags]',
    '',
    'Flags:',
    ...current.map(formatFlagUsage),
    '',
    'Deprecated flags:',
    ...old.map(formatFlagUsage),
    '',
  ].join('\n')
}

/** Returns docs/flags.md; a test checks that the file is up to date. */
export function formatFlagDocs(): string {
  return [
    '# Flags and configuration fields',
    '',
    'Generated from the tables in `src/config/settings-table.ts` and `src/config/flags/flag-table.ts`: run `npm run docs` after a change.',
    '',
    '`--config` names a KubeProxyConfiguration (`kubeproxy.config.k8s.io/v1alpha1`). It replaces every flag that has a field in it,',
    'except those marked "Counts also with --config".',
    '',
    '## Flags',
    '',
    '| Flag | Type | Default | Field | What it does |',
    '| --- | --- | --- | --- | --- |',
    ...flagSettings.map(
      (row) =>
        `| ${formatNames(row)} | ${escapeCell(describeType(row) || 'bool')} | ${formatCode(formatDefault(row))} | ${formatCode(row.path ?? '')} | ${escapeCell(formatHelp(row))} |`,
    ),
    '',
    '## Fields',
    '',
    '| Field | Type | Default | Flag | What it does |',
    '| --- | --- | --- | --- | --- |',
    ...fieldSettings
      .toSorted((a, b) => (a.path < b.path ? -1 : 1))
      .map((row) => {
        const value = showValue(row, getFileDefault(row))
        const flag = row.flag === undefined ? '' : `--${row.flag}`
        const help = escapeCell(`${row.help}${formatDeprecation(row)}`)
        return `| ${formatCode(row.path)} | ${escapeCell(describeFieldType(row.kind))} | ${formatCode(value)} | ${formatCode(flag)} | ${help} |`
      }),
    '',
  ].join('\n')
}

function formatFlagUsage(row: FlagSetting): string {
  const short = row.shorthand === undefined ? '    ' : `-${row.shorthand}, `
  const type = describeType(row)
  const preset = formatDefault(row)
  const bare = codecs[row.kind].bare !== undefined && row.kind !== 'bool' ? '[=true]' : ''
  const head = `  ${short}--${row.flag}${type === '' ? '' : ` ${type}`}${bare}`
  const words = `${formatHelp(row)}${preset === '' || preset === 'false' ? '' : ` (default ${preset})`}`
  return [head, ...wrap(words)].join('\n')
}

function formatHelp(row: FlagSetting): string {
  const beats = row.beatsFile && row.path !== undefined ? ' Counts also with --config.' : ''
  return `${row.help}${beats}${formatDeprecation(row)}`
}

const formatDeprecation = ({ deprecated }: Setting): string =>
  deprecated === undefined ? '' : ` Deprecated: ${deprecated}.`

function wrap(text: string): string[] {
  const lines: string[] = []
  let line = ''
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + word.length + 1 > width - indent) {
      lines.push(line)
      line = ''
    }
    line += line === '' ? word : ` ${word}`
  }
  return [...lines, line].map((each) => ' '.repeat(indent) + each)
}

const describeType = (row: FlagSetting): string => row.label ?? codecs[row.kind].label

const fieldTypes: Readonly<Record<string, string>> = {
  bool: 'boolean',
  int32: 'integer',
  float32: 'number',
  duration: 'duration',
  flushFrequency: 'duration or integer (ns)',
  list: 'list of strings',
  gates: 'map of booleans',
  level: 'integer',
  vmodule: 'list of filePattern, verbosity',
  quantity: 'quantity',
}
const describeFieldType = (kind: string): string => fieldTypes[kind] ?? 'string'

const formatDefault = (row: FlagSetting): string => {
  const shown = showValue(row, row.default)
  return shown === '[]' ? '' : shown
}
const formatNames = (row: FlagSetting): string =>
  row.shorthand === undefined || row.shorthand === row.flag
    ? `\`--${row.flag}\``
    : `\`-${row.shorthand}\`, \`--${row.flag}\``
const formatCode = (text: string): string => (text === '' || text === '[]' ? '' : `\`${text}\``)
const escapeCell = (text: string): string => text.replaceAll('|', '\\|')
