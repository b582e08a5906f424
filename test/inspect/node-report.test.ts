import { describe, expect, it } from 'vitest'
import { parseNodeReport } from '../../src/inspect/node-report.ts'
import { nodeReport } from '../support/node-reports.ts'

describe('the report of a node', () => {
  it('is read as it was written', () => {
    const report = nodeReport('a', { services: 7, drifts: 2 })
    expect(parseNodeReport(JSON.stringify(report))).toEqual(report)
  })

  it('loses what could harm its reader', () => {
    const report = nodeReport('a')
    const hostile = {
      ...report,
      version: '\x1b]0;owned\x07',
      mode: 'x'.repeat(10_000),
      services: 'many',
      reportedAt: 'yesterday',
      families: Array(50).fill({ family: 4, stateHash: '\x9b2J', lastSync: 7, error: null }),
    }
    const read = parseNodeReport(JSON.stringify(hostile))
    expect(read?.version).toBe(' ]0;owned ')
    expect(read?.mode).toHaveLength(300)
    expect(read).toMatchObject({ services: 0, reportedAt: '' })
    expect(read?.families).toEqual(Array(2).fill({ family: 4, stateHash: ' 2J', lastSync: '', error: '' }))
  })

  it.each(['', '{}', 'null', '[]', '{"apiVersion":"sluice/v2","kind":"NodeReport"}', `"${'x'.repeat(70_000)}"`])(
    'is not %.20s',
    (text) => {
      expect(parseNodeReport(text)).toBeUndefined()
    },
  )
})
