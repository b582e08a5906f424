// Checks what happens when a program cannot be started because no descriptor is free.

import { EventEmitter } from 'node:events'
import { expect, it, vi } from 'vitest'
import { runProgram } from '../../../src/sys/process/exec.ts'

// Node returns a child without streams then, which reports the error a moment later (seen with Node 20 and a limit of open files).
vi.mock('node:child_process', () => ({
  spawn: () => {
    const child = new EventEmitter()
    process.nextTick(() => child.emit('error', Object.assign(new Error('spawn sh EMFILE'), { code: 'EMFILE' })))
    return child
  },
}))

it('fails as a program that cannot be started, and does not end the process', async () => {
  await expect(runProgram('sh', ['-c', 'exit'])).rejects.toMatchObject({
    code: 'exec',
    message: 'sh cannot be started',
  })
})
