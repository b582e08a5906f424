// Asks again and again, and shows the answer each time that it has changed: on the whole terminal, or one after the other on a pipe.

import { describeError, ProxyError } from '../lib/errors.ts'
import { sleep, systemClock } from '../lib/time.ts'
import type { Terminal } from './terminal.ts'

interface WatchOptions<T> {
  readonly ask: () => Promise<T>
  readonly format: (answer: T) => string
  readonly terminal: Terminal
  /** The exit status of the command, from its last answer. */
  readonly exitStatus: (answer: T) => number
  /** What a reader of lines wants to see again when it has changed: not ages and counters. */
  readonly substance: (answer: T) => unknown
  /** Ends the watch; a test gives one. SIGINT and SIGTERM end it in any case. */
  readonly signal?: AbortSignal
}

const intervalMs = 1_000
/** Moves the cursor to the first cell and clears what is below. */
const clear = '\x1b[H\x1b[J'

/** Resolves with the exit status when a signal ends the watch. A proxy that does not answer is asked again. */
export async function watchAnswers<T>(options: WatchOptions<T>): Promise<number> {
  const { terminal, signal } = options
  const stop = new AbortController()
  const end = () => stop.abort()
  process.once('SIGINT', end)
  process.once('SIGTERM', end)
  signal?.addEventListener('abort', end, { once: true })
  let status = 0
  let shown = ''
  try {
    while (!stop.signal.aborted) {
      const { text, digest, code } = await askOnce(options)
      status = code
      if (terminal.interactive) terminal.write(`${clear}${text}`)
      else if (digest !== shown) terminal.write(text)
      shown = digest
      await sleep(systemClock, intervalMs, stop.signal).catch(() => {})
    }
    return status
  } finally {
    process.removeListener('SIGINT', end)
    process.removeListener('SIGTERM', end)
  }
}

interface Shown {
  readonly text: string
  /** Equal if the substance has not changed. */
  readonly digest: string
  readonly code: number
}

async function askOnce<T>({ ask, format, exitStatus, substance }: WatchOptions<T>): Promise<Shown> {
  try {
    const answer = await ask()
    return { text: format(answer), digest: JSON.stringify(substance(answer)), code: exitStatus(answer) }
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    const text = `${describeError(error)}\n`
    return { text, digest: text, code: 1 }
  }
}
