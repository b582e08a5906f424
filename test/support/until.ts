// Waits until something is true, always with a limit.

import { setTimeout as delay } from 'node:timers/promises'
import { timeLimit } from '../lab/vm.ts'

const defaultLimitMs = Math.min(timeLimit(30_000), 180_000)

/**
 * Calls `probe` until it returns something other than undefined or false, and returns that. A probe that throws is called again;
 * the last error is the cause of the error that `until` throws when the time is up.
 */
export async function until<T>(
  what: string,
  probe: () => Promise<T | undefined | false> | T | undefined | false,
  { limitMs = defaultLimitMs, everyMs = 10 }: { readonly limitMs?: number; readonly everyMs?: number } = {},
): Promise<T> {
  const end = performance.now() + limitMs
  let last: unknown
  for (;;) {
    try {
      const answer = await probe()
      if (answer !== undefined && answer !== false) return answer
      last = undefined
    } catch (error) {
      last = error
    }
    if (performance.now() > end) throw new Error(`not within ${limitMs} ms: ${what}`, { cause: last })
    await delay(everyMs)
  }
}
