// A clock that runs faster than the real one and records every wait it was asked for.

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
