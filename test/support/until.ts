// Waiting for something to become true, always with an end.

import { setTimeout as sleep } from 'node:timers/promises'

/** Polls until `probe` answers something other than undefined or false; the last error is in the message when time is up. */
export async function until<T>(
  what: string,
  probe: () => Promise<T | undefined | false> | T | undefined | false,
  { limitMs = 30_000, everyMs = 50 }: { limitMs?: number; everyMs?: number } = {},
): Promise<T> {
  const end = performance.now() + limitMs
  let last: unknown
  for (;;) {
    try {
      const answer = await probe()
      if (answer !== undefined && answer !== false) return answer
    } catch (error) {
      last = error
    }
    if (performance.now() > end) throw new Error(`not within ${limitMs} ms: ${what}`, { cause: last })
    await sleep(everyMs)
  }
}
