// Runs the interruptible operations of a ledger to their end at once, for tests and benches.

import type { Changes, Held } from '../../src/backend/backend.ts'
import type { Ledger } from '../../src/backend/ledger.ts'
import { runAtOnce } from './run-at-once.ts'

export const diffAtOnce = <E extends Held>(ledger: Ledger<E>): Changes<E> => runAtOnce(ledger.diff())

export const settleAtOnce = <E extends Held>(
  ledger: Ledger<E>,
  changes: Changes<E>,
  refused: Iterable<string> = [],
): void => runAtOnce(ledger.settle(changes, refused))

export const resetAtOnce = <E extends Held>(ledger: Ledger<E>, held: Iterable<Held>): void =>
  runAtOnce(ledger.reset(held))
