// Clocks, turns of the event loop, Go durations and RFC 3339 times. No other file of `lib` but log.ts reads a clock.

export interface Timer {
  cancel(): void
}

/** Injected wherever something waits, so that tests control the time. All times are in milliseconds. */
export interface Clock {
  /** Unix time. */
  now(): number
  /** Never goes back. Only differences are meaningful. */
  monotonic(): number
  after(ms: number, run: () => void): Timer
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after(ms, run) {
    if (ms < 0.5) {
      // The next turn of the event loop: a timer waits for at least a millisecond, and wakes the process once more.
      const handle = setImmediate(run)
      return { cancel: () => clearImmediate(handle) }
    }
    // Node turns a delay of 2^31 ms or more into 1 ms.
    const handle = setTimeout(run, Math.min(ms, 2 ** 31 - 1))
    return { cancel: () => clearTimeout(handle) }
  },
}

/** The tasks that wait for a turn. */
const waiting: (() => void)[] = []

/**
 * Lets the event loop run what is due: input, timers, other tasks. Tasks that wait here continue one per turn of the loop: if all of them
 * continued in one turn, they would hold the loop for the sum of their time slices.
 */
export const nextTurn = (): Promise<void> =>
  new Promise((resolve) => {
    if (waiting.push(resolve) === 1) setImmediate(resumeNext)
  })

function resumeNext(): void {
  const resolve = waiting.shift()
  if (waiting.length > 0) setImmediate(resumeNext)
  resolve?.()
}

/** Resolves after `ms`, or rejects with the signal's reason. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const onAbort = () => {
      timer.cancel()
      reject(signal?.reason)
    }
    const timer = clock.after(ms, () => {
      signal?.removeEventListener('abort', onAbort)
      resolve()
    })
    signal?.addEventListener('abort', onAbort, { once: true })
  })
}

const unitMs: Readonly<Record<string, number>> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  μs: 1e-3,
  ms: 1,
  s: 1e3,
  m: 6e4,
  h: 3.6e6,
}

/** Parses Go's duration syntax (`2h22m`, `250ms`, `0`) to milliseconds. Returns undefined if the text is not a duration. */
export function parseDuration(text: string): number | undefined {
  const match = /^([+-]?)(.+)$/.exec(text)
  if (match === null) return undefined
  const sign = match[1] === '-' ? -1 : 1
  let rest = match[2] as string
  if (rest === '0') return 0
  let total = 0
  while (rest !== '') {
    const part = /^(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)/.exec(rest)
    if (part === null) return undefined
    total += Number(part[1]) * (unitMs[part[2] as string] as number)
    rest = rest.slice(part[0].length)
  }
  // Rounded to nanoseconds, as in Go: 1.005 s would otherwise be 1004.9999999999999 ms.
  return (sign * Math.round(total * 1e6)) / 1e6
}

/** Formats milliseconds as Go prints a duration: `15m0s`, `24h0m0s`, `250ms`, `0s`. */
export function formatDuration(ms: number): string {
  if (ms === 0) return '0s'
  if (ms < 0) return `-${formatDuration(-ms)}`
  const nanoseconds = Math.round(ms * 1e6)
  if (nanoseconds < 1e3) return `${nanoseconds}ns`
  if (nanoseconds < 1e6) return `${nanoseconds / 1e3}µs`
  if (nanoseconds < 1e9) return `${nanoseconds / 1e6}ms`
  const whole = Math.floor(nanoseconds / 1e9)
  const fraction = String(nanoseconds % 1e9)
    .padStart(9, '0')
    .replace(/0+$/, '')
  const seconds = `${whole % 60}${fraction === '' ? '' : `.${fraction}`}s`
  const minutes = Math.floor(whole / 60) % 60
  const hours = Math.floor(whole / 3600)
  if (hours > 0) return `${hours}h${minutes}m${seconds}`
  return minutes > 0 ? `${minutes}m${seconds}` : seconds
}

/** Go's zero time. Health answers show it before the first sync. */
export const zeroTime = '0001-01-01T00:00:00Z'

/** Formats a time as RFC 3339 in UTC, without trailing zeros of the fraction. */
export function formatTime(unixMs: number): string {
  return new Date(unixMs).toISOString().replace(/\.?0*Z$/, 'Z')
}

/** Formats a duration: `4s`, `3m`, `2h`, `5d`. */
export function formatAge(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000))
  if (seconds < 120) return `${seconds}s`
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)}h` : `${Math.floor(seconds / 86_400)}d`
}
