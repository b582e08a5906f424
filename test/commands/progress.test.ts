import { describe, expect, it } from 'vitest'
import { Progress } from '../../src/commands/progress.ts'
import { memoryTerminal } from './run-command.ts'

const withoutTimes = (text: string) => text.replace(/\(\d+\.\d s\)/g, '(T)')

describe('the steps of a slow command', () => {
  it.each([true, false])('give a message a line of its own (at a terminal: %s)', async (interactive) => {
    const terminal = { ...memoryTerminal(), interactive }
    const progress = new Progress(terminal)
    await progress.report('Starting the proxy', async () => {
      if (interactive) progress.note('E1116 a problem\n')
      progress.note('E1116 another problem\n')
    })
    await progress.report('Stopping', async () => {})
    const lines = withoutTimes(terminal.stderr()).split('\n')
    expect(lines).toEqual([
      ...(interactive ? ['Starting the proxy ...', 'E1116 a problem'] : []),
      'E1116 another problem',
      'Starting the proxy ... done (T)',
      'Stopping ... done (T)',
      '',
    ])
  })

  it('say whether a step failed or the user stopped it', async () => {
    const terminal = memoryTerminal()
    const progress = new Progress(terminal)
    const fail = () => Promise.reject(new Error('x'))
    await expect(progress.report('One', fail)).rejects.toThrow('x')
    await expect(progress.report('Two', fail, AbortSignal.abort())).rejects.toThrow('x')
    expect(withoutTimes(terminal.stderr())).toBe('One ... failed (T)\nTwo ... stopped (T)\n')
  })
})
