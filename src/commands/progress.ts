// Says what is being done while it takes its time: a line per step, with how long it took.

import type { Terminal } from './terminal.ts'

/** Shown at once if somebody is looking, else after a second: nobody waits without knowing for what. */
const patienceMs = 1_000

export async function step<T>(terminal: Terminal, what: string, work: () => Promise<T>): Promise<T> {
  const started = performance.now()
  let shown = false
  const show = () => {
    shown = true
    terminal.note(`${what} ...`)
  }
  const timer = terminal.interactive ? undefined : setTimeout(show, patienceMs)
  if (terminal.interactive) show()
  const end = (word: string) => {
    clearTimeout(timer)
    const seconds = ((performance.now() - started) / 1000).toFixed(1)
    terminal.note(shown ? ` ${word} (${seconds} s)\n` : `${what} ... ${word} (${seconds} s)\n`)
  }
  try {
    const result = await work()
    end('done')
    return result
  } catch (error) {
    end('failed')
    throw error
  }
}
