// Drives the real engine and a backend through the corpus: one process inside the node's namespace, kept for all scenarios.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { NodeSettings } from '../scenarios/format.ts'
import type { Change, Driver, Start } from './driver.ts'
import type { Ask } from './engine.worker.ts'

const worker = join(import.meta.dirname, 'engine.worker.ts')
/** The same as one plain file, where somebody made one: starts without a TypeScript loader. */
const bundled = process.env.SLUICE_ENGINE_WORKER

/** For Node in a VM: whether to leave out the compiler, which does not always pay there. */
export const vmNodeArgs: readonly string[] = (process.env.SLUICE_VM_NODE ?? '').split(' ').filter((word) => word !== '')

export interface EngineDriverOptions {
  /** What the kernel still holds for services, in words, by the backend's own witness. */
  readonly holdings: (start: Start) => Promise<readonly string[]>
  readonly listens?: boolean
  /** What does not depend on services stays for the next scenario, which must adopt it; quicker where programs are slow to start. */
  readonly keepBase?: boolean
}

export class EngineDriver implements Driver {
  readonly provides = ['conntrack']
  readonly listens: boolean
  readonly #options: EngineDriverOptions
  #child: ChildProcess | undefined
  #namespace = ''
  #start: Start | undefined

  constructor(options: EngineDriverOptions) {
    this.#options = options
    this.listens = options.listens ?? false
  }

  async start(start: Start): Promise<void> {
    if (this.#namespace !== start.node.name) this.close()
    this.#child ??= this.#spawn(start.node.name)
    this.#start = start
    const { mode, families, settings, interfaceAddresses, initial = [] } = start
    await this.#ask({ ask: 'start', mode, families, settings, interfaceAddresses, initial })
  }

  async apply(change: Change): Promise<void> {
    await this.#ask({ ask: 'apply', ...change })
  }

  async reconfigure(settings: NodeSettings): Promise<void> {
    await this.#ask({ ask: 'reconfigure', settings })
  }

  async settle(): Promise<void> {
    await this.#ask({ ask: 'settle' })
  }

  /** When the proxy has repaired what somebody does now. */
  async repaired(limitMs: number): Promise<void> {
    await this.#ask({ ask: 'repaired', limitMs })
  }

  holdings(): Promise<readonly string[]> {
    return this.#options.holdings(this.#start as Start)
  }

  async stop(): Promise<void> {
    await this.#ask({ ask: 'stop', keepBase: this.#options.keepBase ?? false })
  }

  close(): void {
    this.#child?.kill('SIGKILL')
    this.#child = undefined
  }

  #spawn(namespace: string): ChildProcess {
    this.#namespace = namespace
    const program = bundled === undefined ? ['--import', 'tsx', worker] : [bundled]
    const args = ['netns', 'exec', namespace, process.execPath, ...vmNodeArgs, ...program]
    const child = spawn('ip', args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
    // The lab's end is the test process's end: a proxy must not outlive it.
    process.once('exit', () => child.kill('SIGKILL'))
    return child
  }

  async #ask(ask: Ask): Promise<unknown> {
    const child = this.#child as ChildProcess
    const over = new AbortController()
    const died = once(child, 'exit', { signal: over.signal }).then(([code]) => {
      throw new Error(`the proxy ended with ${code}`)
    })
    died.catch(() => undefined)
    const answered = once(child, 'message', { signal: over.signal })
    child.send(ask)
    const [message] = (await Promise.race([answered, died])) as [{ result?: unknown; error?: string }]
    over.abort()
    if (message.error !== undefined) throw new Error(message.error)
    return message.result
  }
}
