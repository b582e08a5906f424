// A child process that cannot outlive the test: it logs to a file, is ended by its pid only, and is killed when the test process ends.

import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, existsSync, openSync, readFileSync } from 'node:fs'

/** Makes the kernel kill the child when the test process is killed. */
const SETPRIV = '/usr/bin/setpriv'

export interface Child {
  readonly pid: number
  readonly running: boolean
  /** Everything it has printed so far. */
  output(): string
  /** Sends the signal and waits for the end; kills the process after `graceMs`. */
  end(signal: NodeJS.Signals, graceMs?: number): Promise<number | null>
  readonly exited: Promise<number | null>
}

export interface ChildOptions {
  readonly program: string
  readonly args: readonly string[]
  readonly log: string
  readonly env?: NodeJS.ProcessEnv
  /** Words before the program, for example to enter a network namespace. */
  readonly wrapper?: readonly string[]
}

export function startChild(options: ChildOptions): Child {
  const parts = [...(options.wrapper ?? []), options.program, ...options.args]
  const command = existsSync(SETPRIV) ? [SETPRIV, '--pdeathsig', 'KILL', ...parts] : parts
  const log = openSync(options.log, 'a')
  const child = spawn(command[0]!, command.slice(1), { stdio: ['ignore', log, log], env: options.env ?? process.env })
  closeSync(log)
  const kill = () => child.kill('SIGKILL')
  process.once('exit', kill)
  const exited = new Promise<number | null>((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (code) => {
      process.removeListener('exit', kill)
      resolve(code)
    })
  })
  exited.catch(() => {}) // callers that wait for it get the error
  return {
    pid: child.pid ?? -1,
    get running() {
      return isRunning(child)
    },
    output: () => readFileSync(options.log, 'utf8'),
    exited,
    async end(signal, graceMs = 10_000) {
      if (!isRunning(child)) return exited
      child.kill(signal)
      const timer = setTimeout(() => child.kill('SIGKILL'), graceMs)
      try {
        return await exited
      } finally {
        clearTimeout(timer)
      }
    },
  }
}

function isRunning(child: ChildProcess): boolean {
  return child.pid !== undefined && child.exitCode === null && child.signalCode === null
}
