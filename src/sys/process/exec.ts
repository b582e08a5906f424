// Runs a program: text in, text out, a deadline, and an error that says what the program said.

import { type ChildProcessByStdio, spawn } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { ProxyError } from '../../lib/errors.ts'
import { type Clock, systemClock } from '../../lib/time.ts'

export interface RunOptions {
  readonly stdin?: string | Uint8Array | readonly Uint8Array[]
  readonly deadlineMs?: number
  readonly signal?: AbortSignal
  /** Exit codes that are answers, not failures; only 0 if absent. */
  readonly accept?: readonly number[]
  readonly env?: NodeJS.ProcessEnv
  /** A descriptor that gets what the program prints; `stdout` is '' then. */
  readonly stdout?: number
  readonly clock?: Clock
}

export interface Output {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/** An error shows the end of what the program said: its last lines tell why. */
const shownChars = 2000

/** Throws an ExecError. */
export function runProgram(program: string, args: readonly string[], options: RunOptions = {}): Promise<Output> {
  const { deadlineMs = 60_000, signal, accept = [0], clock = systemClock } = options
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const child = spawn(program, args, {
      stdio: ['pipe', options.stdout ?? 'pipe', 'pipe'],
      env: options.env ?? process.env,
    }) as ChildProcessByStdio<Writable, Readable | null, Readable>
    const stdout: Buffer[] = []
    const stderr: Buffer[] = []
    let late = false
    const fail = (what: string, ending: Pick<ExecFailure, 'exitCode' | 'signal' | 'cause'> = {}) => {
      reject(new ExecError({ program, args, what, ...ending, stderr: Buffer.concat(stderr).toString() }))
    }
    const timer = clock.after(deadlineMs, () => {
      late = true
      child.kill('SIGKILL')
    })
    const onAbort = () => child.kill('SIGKILL')
    signal?.addEventListener('abort', onAbort, { once: true })
    const finish = () => {
      timer.cancel()
      signal?.removeEventListener('abort', onAbort)
    }
    child.stdout?.on('data', (chunk: Buffer) => stdout.push(chunk))
    child.stderr.on('data', (chunk: Buffer) => stderr.push(chunk))
    // A program that ends without reading its input breaks the pipe; its exit code tells more than that.
    child.stdin.on('error', () => {})
    feed(child.stdin, options.stdin)
    child.on('error', (cause) => {
      finish()
      const missing = (cause as NodeJS.ErrnoException).code === 'ENOENT'
      fail(missing ? 'is not installed (not found in PATH)' : 'cannot be started', { cause })
    })
    child.on('close', (code, killer) => {
      finish()
      if (signal?.aborted) return reject(signal.reason)
      if (late) return fail(`did not end in ${deadlineMs} ms and was killed`, { signal: 'SIGKILL' })
      if (code === null) return fail(`was killed by ${killer}`, { signal: String(killer) })
      if (!accept.includes(code)) return fail(`ended with exit code ${code}`, { exitCode: code })
      resolve({ code, stdout: Buffer.concat(stdout).toString(), stderr: Buffer.concat(stderr).toString() })
    })
  })
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

/** A program that could not be started, was killed, or ended with an exit code that is not an answer. */
export class ExecError extends ProxyError {
  /** Undefined if the program did not end by itself. */
  readonly exitCode: number | undefined
  /** The end of what the program wrote to stderr. */
  readonly stderr: string

  constructor({ program, args, what, stderr, exitCode, signal, cause }: ExecFailure) {
    const said = stderr.trim().slice(-shownChars)
    const ending = { ...(exitCode === undefined ? {} : { exitCode }), ...(signal === undefined ? {} : { signal }) }
    const fields = { program, args, ...ending, stderr: said }
    super('exec', `${program} ${what}${said === '' ? '' : `: ${said}`}`, { cause, fields })
    this.exitCode = exitCode
    this.stderr = said
  }
}

function feed(stdin: Writable, input: RunOptions['stdin']): void {
  const pieces = typeof input === 'string' || input instanceof Uint8Array ? [input] : (input ?? [])
  stdin.cork()
  for (const piece of pieces) stdin.write(piece)
  stdin.end()
}
