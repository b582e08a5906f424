import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { parseAllDocuments } from 'yaml'

const read = (path: string) => readFileSync(join(import.meta.dirname, '../../deploy', path), 'utf8')

const documentsOf = (text: string) => parseAllDocuments(text).map((document) => document.toJS())

it('the chart has the roles and policies of deploy/fleet.yaml', () => {
  const rendered = read('chart/sluice/templates/fleet.yaml')
    .replaceAll('{{ .Release.Namespace }}', 'kube-system')
    .replaceAll('{{ include "sluice.serviceAccountName" . }}', 'sluice')
    .split('\n')
    .filter((line) => !line.startsWith('{{-'))
    .join('\n')
  const own = documentsOf(read('fleet.yaml'))
  expect(own.length).toBeGreaterThan(10)
  expect(documentsOf(rendered)).toEqual(own)
})
