// A clock that runs faster than the real one, and remembers what it was asked to wait for.

import type { Clock } from '../../src/lib/time.ts'

export interface FastClock extends Clock {
  readonly waits: number[]
}

export function fastClock(factor: number): FastClock {
  const waits: number[] = []
  const start = Date.now()
  return {
    waits,
    now: () => start + performance.now() * factor,
    monotonic: () => performance.now() * factor,
    after(ms, run) {
      waits.push(ms)
      const handle = setTimeout(run, Math.min(ms / factor, 2 ** 31 - 1))
      return { cancel: () => clearTimeout(handle) }
    },
  }
}

/** Polls until the condition holds; the error says what was waited for. */
export async function until(what: string, holds: () => boolean, limitMs = 10_000): Promise<void> {
  const end = performance.now() + limitMs
  while (!holds()) {
    if (performance.now() > end) throw new Error(`waited ${limitMs} ms for: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
}
