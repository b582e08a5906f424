// Reports which services do not get an address that they claim: to the journal every conflict, to the log one line per service and holder.

import { familyName } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Conflict, SyncJournal } from './journal.ts'

export interface ConflictChanges {
  readonly began: readonly Conflict[]
  readonly ended: readonly Conflict[]
}

export function reportConflicts({ began, ended }: ConflictChanges, journal: SyncJournal, log: Logger): void {
  for (const conflict of ended) journal.resolved(conflict)
  for (const conflict of began) journal.conflict(conflict)
  logConflicts(began, log)
}

/** One line for a service and a holder, however many addresses they contest: a service may have thousands. */
function logConflicts(conflicts: readonly Conflict[], log: Logger): void {
  const byParties = new Map<string, Conflict[]>()
  for (const conflict of conflicts) {
    const parties = `${conflict.reason} ${conflict.winner} ${conflict.loser}`
    const known = byParties.get(parties)
    if (known === undefined) byParties.set(parties, [conflict])
    else known.push(conflict)
  }
  for (const own of byParties.values()) {
    const { family, ...first } = own[0] as Conflict
    const fields = { ...first, family: familyName(family), addresses: own.length }
    log.warn('A service does not get an address that it claims', fields)
  }
}
