// Waits for the first successful sync of every family.

import type { SyncJournal } from '../engine/journal.ts'
import { describeError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'

export function runAfterFirstSyncs(
  journal: SyncJournal,
  families: readonly Family[],
  then: () => Promise<void>,
  log: Logger,
): void {
  const waiting = new Set(families)
  const unsubscribe = journal.subscribe({
    report({ family, ok }) {
      if (!ok || !waiting.delete(family) || waiting.size > 0) return
      unsubscribe()
      then().catch((error: unknown) =>
        log.v(1, 'Stopped removing the rules of other modes', { error: describeError(error) }),
      )
    },
  })
}
