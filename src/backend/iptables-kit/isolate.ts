// Gets in what the programs accept, and finds out what they refuse: by the line they complain about, else by halves. No I/O of its own.

import type { ProxyError } from '../../lib/errors.ts'

/** Why a write was refused, and the lines that it may be about; none if that was not told. */
export interface IsolationFailure {
  readonly error: ProxyError
  readonly lines: readonly string[]
}

export interface Isolation<E> {
  /** Writes what was accepted so far and these: all or nothing. What it does not refuse is accepted. */
  readonly attempt: (some: readonly E[]) => Promise<IsolationFailure | undefined>
  readonly mentions: (one: E, line: string) => boolean
}

export interface Culprit<E> {
  readonly one: E
  readonly error: ProxyError
}

/** The ones that are refused; all others are in. Throws if something else is at fault. */
export async function isolate<E>(
  all: readonly E[],
  { attempt, mentions }: Isolation<E>,
): Promise<readonly Culprit<E>[]> {
  const culprits: Culprit<E>[] = []
  let sure = false
  let last = await attempt(all)

  /** Another part may have gone in of what was refused: each table is written by itself. */
  const withoutAll = async () => {
    last = await attempt([])
    if (last !== undefined) throw last.error
    sure = true
  }

  const divide = async (some: readonly E[], failure: IsolationFailure): Promise<void> => {
    if (some.length <= 1) {
      if (!sure) await withoutAll()
      for (const one of some) culprits.push({ one, error: failure.error })
      return
    }
    const suspects = some.filter((one) => failure.lines.some((line) => mentions(one, line)))
    const told = suspects.length > 0 && suspects.length < some.length
    if (!told && !sure) await withoutAll()
    const middle = some.length >> 1
    const parts = told
      ? [some.filter((one) => !suspects.includes(one)), ...suspects.map((one) => [one])]
      : [some.slice(0, middle), some.slice(middle)]
    for (const part of parts) {
      last = await attempt(part)
      if (last !== undefined) await divide(part, last)
    }
  }

  if (last !== undefined) {
    if (all.length === 0) throw last.error
    await divide(all, last)
    if (last !== undefined) await withoutAll()
  }
  return culprits
}
