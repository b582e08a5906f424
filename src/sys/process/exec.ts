// Runs a program through Node's child_process: text in, text out, a deadline, and an error that contains what the program printed.
//
// For programs that run rarely. spawn.ts does the same for programs that run at every sync, at a tenth of the cost.

import { type ChildProcessByStdio, spawn } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { hasErrno, ProxyError } from '../../lib/errors.ts'
import { type Clock, systemClock } from '../../lib/time.ts'
import { platform } from '../platform/platform.ts'

export interface RunOptions {
  readonly stdin?: string | Uint8Array | readonly Uint8Array[]
  readonly deadlineMs?: number
  readonly signal?: AbortSignal
  /** Exit codes that are answers, not failures; only 0 if absent. */
  readonly accept?: readonly number[]
  readonly env?: NodeJS.ProcessEnv
  /** A descriptor that the program prints to; the output's `stdout` is then ''. */
  readonly stdout?: number
  readonly clock?: Clock
}

export const defaultDeadlineMs = 60_000

export interface Output {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/** Throws an ExecError. */
export function runProgram(program: string, args: readonly string[], options: RunOptions = {}): Promise<Output> {
  const { deadlineMs = defaultDeadlineMs, signal, clock = systemClock } = options
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const path = platform.findProgram(program)
    if (path === undefined) return reject(new ExecError({ program, args, what: notInstalled, stderr: '' }))
    // Node's types do not connect the descriptors in `stdio` with the streams of the child.
    const child = spawn(path, args, {
      argv0: program,
      stdio: ['pipe', options.stdout ?? 'pipe', 'pipe'],
      env: options.env ?? platform.programEnvironment(),
    }) as Omit<ChildProcessByStdio<Writable, Readable | null, Readable>, 'stdin'> & {
      readonly stdin: Writable | undefined
    }
    const stdout: Buffer[] = []
    const stderr: Buffer[] = []
    let isLate = false
    const kill = () => child.kill('SIGKILL')
    const timer = clock.after(deadlineMs, () => {
      isLate = true
      kill()
    })
    signal?.addEventListener('abort', kill, { once: true })
    const stopWaiting = () => {
      timer.cancel()
      signal?.removeEventListener('abort', kill)
    }
    child.on('error', (cause) => {
      stopWaiting()
      reject(new ExecError({ program, args, what: describeStartFailure(cause), stderr: '', cause }))
    })
    // Without free descriptors a child has no streams, and reports the error a moment later.
    if (child.stdin === undefined) return
    child.stdout?.on('data', (chunk: Buffer) => stdout.push(chunk))
    child.stderr.on('data', (chunk: Buffer) => stderr.push(chunk))
    // A program that ends without reading its input breaks the pipe. Its exit code says more than that.
    child.stdin.on('error', () => {})
    writeInput(child.stdin, options.stdin)
    child.on('close', (code, killer) => {
      stopWaiting()
      if (signal?.aborted) return reject(signal.reason)
      const printed = { stdout: Buffer.concat(stdout).toString(), stderr: Buffer.concat(stderr).toString() }
      try {
        resolve(judgeEnding(program, args, options, { code, killer, isLate, ...printed }))
      } catch (error) {
        reject(error)
      }
    })
  })
}

export const notInstalled = 'is not installed (not found in the folders of the system)'

const describeStartFailure = (cause: unknown): string =>
  hasErrno(cause, 'ENOENT') ? notInstalled : 'cannot be started'

function writeInput(stdin: Writable, input: RunOptions['stdin']): void {
  const pieces = typeof input === 'string' || input instanceof Uint8Array ? [input] : (input ?? [])
  stdin.cork()
  for (const piece of pieces) stdin.write(piece)
  stdin.end()
}

/** How a program ended. */
export interface ProgramEnding {
  /** Null if a signal killed the program. */
  readonly code: number | null
  /** The name of that signal. */
  readonly killer: string | null
  /** True if the program exceeded its deadline. */
  readonly isLate: boolean
  readonly stdout: string
  readonly stderr: string
}

/** Returns the output of a program that ended with an accepted exit code; throws an ExecError otherwise. */
export function judgeEnding(
  program: string,
  args: readonly string[],
  { deadlineMs = defaultDeadlineMs, accept = [0] }: Pick<RunOptions, 'deadlineMs' | 'accept'>,
  { code, killer, isLate, stdout, stderr }: ProgramEnding,
): Output {
  const failure = { program, args, stderr }
  if (isLate) {
    throw new ExecError({ ...failure, what: `did not end within ${deadlineMs} ms and was killed`, signal: 'SIGKILL' })
  }
  if (code === null) throw new ExecError({ ...failure, what: `was killed by ${killer}`, signal: String(killer) })
  if (!accept.includes(code)) {
    throw new ExecError({ ...failure, what: `ended with exit code ${code}`, exitCode: code })
  }
  return { code, stdout, stderr }
}

export interface ExecFailure {
  readonly program: string
  readonly args: readonly string[]
  /** Completes the sentence "<program> …", for example "ended with exit code 1". */
  readonly what: string
  readonly stderr: string
  readonly exitCode?: number
  readonly signal?: string
  readonly cause?: unknown
}

/** The error contains the end of what the program printed, because the last lines state the reason. */
const maxStderrChars = 2000

/** A program could not be started, was killed, or ended with an exit code that is not an answer. */
export class ExecError extends ProxyError {
  /** Undefined if the program did not end by itself. */
  readonly exitCode: number | undefined
  /** The end of what the program printed to stderr. */
  readonly stderr: string

  constructor({ program, args, what, stderr, exitCode, signal, cause }: ExecFailure) {
    const printed = stderr.trim().slice(-maxStderrChars)
    const ending = { ...(exitCode === undefined ? {} : { exitCode }), ...(signal === undefined ? {} : { signal }) }
    const fields = { program, args, ...ending, stderr: printed }
    super('exec', `${program} ${what}${printed === '' ? '' : `: ${printed}`}`, { cause, fields })
    this.exitCode = exitCode
    this.stderr = printed
  }
}
