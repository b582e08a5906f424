// Reports the steps of a slow command: one line per step, with how long the step took.

import type { Terminal } from './terminal.ts'

/** Without a person at the terminal, a step that ends earlier than this prints its whole line at the end. */
const announceMs = 1_000

export async function reportStep<T>(terminal: Terminal, title: string, work: () => Promise<T>): Promise<T> {
  const started = performance.now()
  let announced = false
  const announce = () => {
    announced = true
    terminal.note(`${title} ...`)
  }
  const timer = terminal.interactive ? undefined : setTimeout(announce, announceMs)
  if (terminal.interactive) announce()
  const finish = (result: string) => {
    clearTimeout(timer)
    const seconds = ((performance.now() - started) / 1000).toFixed(1)
    terminal.note(announced ? ` ${result} (${seconds} s)\n` : `${title} ... ${result} (${seconds} s)\n`)
  }
  try {
    const result = await work()
    finish('done')
    return result
  } catch (error) {
    finish('failed')
    throw error
  }
}
