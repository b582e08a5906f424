// One shell inside a namespace that runs programs one after the other, so that only the programs themselves are started.

import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import type { Command } from './namespace.ts'

interface Waiting {
  resolve(command: Command): void
  reject(error: Error): void
}

export class Shell {
  readonly #child: ChildProcessWithoutNullStreams
  /** Marks the end of the output of a program, on stdout and stderr. */
  readonly #mark = randomUUID()
  readonly #waiting: Waiting[] = []
  #stdout = ''
  #stderr = ''

  constructor(namespace: string) {
    this.#child = spawn('ip', ['netns', 'exec', namespace, 'sh'], { stdio: ['pipe', 'pipe', 'pipe'] })
    const { stdin, stdout, stderr } = this.#child
    stdout.setEncoding('utf8').on('data', (chunk: string) => {
      this.#stdout += chunk
      this.#settle()
    })
    stderr.setEncoding('utf8').on('data', (chunk: string) => {
      this.#stderr += chunk
      this.#settle()
    })
    stdin.on('error', () => undefined)
    this.#child.on('error', (error) => this.#fail(error))
    this.#child.on('close', (code) =>
      this.#fail(new Error(`the shell in ${namespace} ended with ${code}: ${this.#stderr}`)),
    )
    this.#keepAlive(false)
  }

  run(program: string, args: readonly string[]): Promise<Command> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject })
      this.#keepAlive(true)
      const words = [program, ...args].map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(' ')
      this.#child.stdin.write(`${words} </dev/null; echo ${this.#mark} $?; echo ${this.#mark} >&2\n`)
    })
  }

  close(): void {
    this.#child.stdin.end()
  }

  #settle(): void {
    const [out, err] = [this.#stdout.indexOf(this.#mark), this.#stderr.indexOf(`${this.#mark}\n`)]
    const end = out < 0 ? -1 : this.#stdout.indexOf('\n', out)
    if (end < 0 || err < 0) return
    const code = Number(this.#stdout.slice(out + this.#mark.length, end))
    const command = { code, stdout: this.#stdout.slice(0, out), stderr: this.#stderr.slice(0, err) }
    this.#stdout = this.#stdout.slice(end + 1)
    this.#stderr = this.#stderr.slice(err + this.#mark.length + 1)
    this.#waiting.shift()?.resolve(command)
    if (this.#waiting.length === 0) this.#keepAlive(false)
    this.#settle()
  }

  #fail(error: Error): void {
    for (const { reject } of this.#waiting.splice(0)) reject(error)
  }

  /** An idle shell must not keep the process alive. */
  #keepAlive(busy: boolean): void {
    const { stdin, stdout, stderr } = this.#child
    for (const one of [this.#child, stdin, stdout, stderr] as unknown as { ref(): void; unref(): void }[]) {
      if (busy) one.ref()
      else one.unref()
    }
  }
}
