// Runs a program that may hang, in a process group of its own: at its deadline, or when this process ends, the whole group is killed.

import { type ChildProcess, type ChildProcessByStdio, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'
import type { Clock } from '../lib/time.ts'

export interface GroupOptions {
  readonly env: NodeJS.ProcessEnv
  readonly clock: Clock
  /** Kills the group at once when it aborts. */
  readonly signal: AbortSignal
}

const deadlineMs = 60_000
/** Between SIGTERM and SIGKILL. */
const graceMs = 2_000
/** A child of the program may keep the pipes open after the program has ended. */
const openPipesMs = 2_000
const maxOutputBytes = 1 << 20
/** The end of the error output that is kept. */
const maxErrorCharacters = 500

/** Resolves with the output of the program. Rejects with the reason of the signal, or with an error that has the end of the error output. */
export async function runInGroup(command: string, args: readonly string[], options: GroupOptions): Promise<string> {
  const { env, clock, signal } = options
  signal.throwIfAborted()
  const child = spawn(command, [...args], { env, detached: true, stdio: ['ignore', 'pipe', 'pipe'] })
  // Without free descriptors a child has no streams, and reports an error that must not end this process.
  child.on('error', () => {})
  const kill = () => signalGroup(child, 'SIGKILL')
  process.once('exit', kill)
  signal.addEventListener('abort', kill, { once: true })
  const finish = () => {
    kill()
    child.stdout?.destroy()
    child.stderr?.destroy()
    process.removeListener('exit', kill)
    signal.removeEventListener('abort', kill)
  }
  try {
    const output = await waitForEnd(child, options)
    finish()
    return output
  } catch (error) {
    if (signal.aborted) finish()
    else {
      // The caller learns of the failure now; a program that ignores SIGTERM is killed a little later.
      signalGroup(child, 'SIGTERM')
      clock.after(graceMs, finish)
    }
    throw error
  }
}

type PipedChild = ChildProcessByStdio<null, Readable, Readable>

function waitForEnd(child: PipedChild, { clock, signal }: GroupOptions): Promise<string> {
  return new Promise<string>((resolve, reject) => {
    const timers: { cancel(): void }[] = []
    const after = (ms: number, act: () => void) => timers.push(clock.after(ms, act))
    let output = ''
    let errors = ''
    const settle = (problem: unknown) => {
      for (const timer of timers) timer.cancel()
      signal.removeEventListener('abort', onAbort)
      if (problem === undefined) resolve(output)
      else reject(problem)
    }
    const onAbort = () => settle(signal.reason)
    signal.addEventListener('abort', onAbort, { once: true })
    after(deadlineMs, () => settle(new Error(`does not end within ${deadlineMs / 1000} s, and is killed`)))
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      output += text
      if (output.length > maxOutputBytes) settle(new Error(`prints more than ${maxOutputBytes} bytes`))
    })
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      errors = (errors + text).slice(-maxErrorCharacters)
    })
    const judge = (code: number | null, killer: NodeJS.Signals | null) =>
      settle(code === 0 ? undefined : new Error(errors.trim() || `ends with ${killer ?? `exit code ${code}`}`))
    child.once('error', settle)
    child.once('exit', (code, killer) => after(openPipesMs, () => judge(code, killer)))
    child.once('close', judge)
  })
}

/** Does nothing if the group is gone. */
function signalGroup({ pid }: ChildProcess, name: NodeJS.Signals): void {
  if (pid === undefined) return
  try {
    process.kill(-pid, name)
  } catch {
    // Every process of the group has ended.
  }
}
