// Runs a program as exec.ts does, at a tenth of the cost: it does not fork this process, and no pipe wakes this process.
//
// Node forks, which copies the map of all our memory and makes each page fault once more when it is next written: 3 to 10 ms of CPU with
// 150 MB. Here input and output are files in memory, and the only thing to wait for is the end of the program.

import { closeSync } from 'node:fs'
import { constants } from 'node:os'
import { systemClock } from '../../lib/time.ts'
import { ENOENT } from '../errno.ts'
import { pidfdOpen, reap, spawn, watchReadable } from '../libc.ts'
import {
  defaultDeadlineMs,
  ExecError,
  judgeEnding,
  notInstalled,
  type Output,
  type RunOptions,
  runProgram,
} from './exec.ts'
import { findProgram, programEnvironment } from './find-program.ts'
import { MemoryFile } from './memory-file.ts'

export interface SpawnOptions extends Omit<RunOptions, 'stdin'> {
  readonly stdin?: string | MemoryFile
}

interface StandardFiles {
  readonly stdin: MemoryFile
  readonly stdout: MemoryFile
  readonly stderr: MemoryFile
}

/** Throws an ExecError. */
export async function spawnProgram(
  program: string,
  args: readonly string[],
  options: SpawnOptions = {},
): Promise<Output> {
  options.signal?.throwIfAborted()
  const { stdin = '' } = options
  const input = stdin instanceof MemoryFile ? stdin : new MemoryFile('stdin')
  const files = { stdin: input, stdout: new MemoryFile('stdout'), stderr: new MemoryFile('stderr') }
  try {
    if (typeof stdin === 'string' && stdin !== '') input.append(Buffer.from(stdin))
    // Without files in memory, pipes work too, but cost more.
    const hasFiles = Object.values(files).every(({ fd }) => fd >= 0)
    if (!hasFiles) return await runProgram(program, args, { ...options, stdin: input.bytes() })
    return await runWithFiles(program, args, options, files)
  } finally {
    if (input !== stdin) input.close()
    files.stdout.close()
    files.stderr.close()
  }
}

async function runWithFiles(
  program: string,
  args: readonly string[],
  options: SpawnOptions,
  files: StandardFiles,
): Promise<Output> {
  const { deadlineMs = defaultDeadlineMs, signal, clock = systemClock } = options
  const pid = start(program, args, options, files)
  const kill = () => void process.kill(pid, 'SIGKILL')
  let isLate = false
  const timer = clock.after(deadlineMs, () => {
    isLate = true
    kill()
  })
  signal?.addEventListener('abort', kill, { once: true })
  const status = await waitForEnd(pid)
  timer.cancel()
  signal?.removeEventListener('abort', kill)
  if (signal?.aborted) throw signal.reason
  const printed = { stdout: String(files.stdout), stderr: String(files.stderr) }
  return judgeEnding(program, args, options, { ...parseStatus(status), isLate, ...printed })
}

/** Returns the process id. */
function start(program: string, args: readonly string[], options: SpawnOptions, files: StandardFiles): number {
  const fail = (what: string) => new ExecError({ program, args, what, stderr: '' })
  const env = options.env ?? programEnvironment()
  const path = findProgram(program)
  if (path === undefined) throw fail(notInstalled)
  const stdin = files.stdin.reopen()
  let pid: number
  try {
    pid = spawn(path, [program, ...args], env, [stdin, options.stdout ?? files.stdout.fd, files.stderr.fd])
  } finally {
    closeSync(stdin)
  }
  if (pid === -ENOENT) throw fail(notInstalled)
  if (pid < 0) throw fail(`cannot be started (error ${-pid})`)
  return pid
}

/** The low seven bits of a wait status are the signal that killed the program; the next byte is the exit code. */
function parseStatus(status: number): { readonly code: number | null; readonly killer: string | null } {
  const signal = status & 0x7f
  if (signal === 0) return { code: (status >> 8) & 0xff, killer: null }
  const name = Object.entries(constants.signals).find(([, number]) => number === signal)?.[0]
  return { code: null, killer: name ?? `signal ${signal}` }
}

/** How often the status is read where the kernel does not report the end: before Linux 5.3, or without free descriptors. */
const pollMs = 10

/** Resolves with the wait status. */
function waitForEnd(pid: number): Promise<number> {
  return new Promise((resolve) => {
    const pidfd = pidfdOpen(pid)
    if (pidfd < 0) {
      const polling = setInterval(() => {
        const status = reap(pid)
        if (status === undefined) return
        clearInterval(polling)
        resolve(status)
      }, pollMs)
      return
    }
    const readiness = watchReadable(
      pidfd,
      () => {
        const status = reap(pid)
        if (status === undefined) return
        readiness.close()
        closeSync(pidfd)
        resolve(status)
      },
      true,
    )
  })
}
