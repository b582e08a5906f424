// Checks that the log has one line per service and holder, however many addresses they contest.

import { expect, it } from 'vitest'
import { reportConflicts } from '../../src/engine/conflict-report.ts'
import { type Conflict, SyncJournal } from '../../src/engine/journal.ts'
import { type Logger, silentLogger } from '../../src/lib/log.ts'

it('300 contested ports are one log line for each holder, and 300 conflicts for the journal', () => {
  const lines: string[] = []
  const log: Logger = { ...silentLogger, warn: (_, fields) => void lines.push(JSON.stringify(fields)) }
  const journal = new SyncJournal({ log: silentLogger })
  let conflicts = 0
  journal.subscribe({ conflict: () => void conflicts++ })
  const began = Array.from({ length: 300 }, (_, i): Conflict => {
    const winner = i % 2 === 0 ? 'ns/first' : 'ns/second'
    return { family: 4, frontend: `172.30.0.1:${i + 1}/tcp`, winner, loser: 'ns/loser', reason: 'age' }
  })
  reportConflicts({ began, ended: [] }, journal, log)
  expect(conflicts).toBe(300)
  expect(lines).toHaveLength(2)
  for (const line of lines) expect(line).toContain('"addresses":150')
})
