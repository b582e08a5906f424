// Runs the real engine and a backend in a process inside the namespace of the node, for all scenarios of the corpus.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { NodeSettings } from '../scenarios/format.ts'
import type { Change, Driver, StartOptions } from './driver.ts'
import type { DriverRequest } from './engine.worker.ts'

const worker = join(import.meta.dirname, 'engine.worker.ts')
/** The bundle of the worker, where one was made: it starts without a TypeScript loader. */
const bundled = process.env.SLUICE_ENGINE_WORKER

/** Arguments for Node in a VM, for example to switch off the compiler, which is not always worth its time there. */
export const vmNodeArgs: readonly string[] = (process.env.SLUICE_VM_NODE ?? '').split(' ').filter((word) => word !== '')

export interface EngineDriverOptions {
  /** Describes what the kernel still holds for services, as tools other than ours show it. */
  readonly holdings: (start: StartOptions) => Promise<readonly string[]>
  readonly listens?: boolean
  /** True if rules that do not depend on services stay for the next scenario, which must adopt them: faster where programs start slowly. */
  readonly keepBase?: boolean
}

export class EngineDriver implements Driver {
  readonly provides = ['conntrack']
  readonly listens: boolean
  readonly #options: EngineDriverOptions
  #child: ChildProcess | undefined
  #namespace = ''
  #start: StartOptions | undefined

  constructor(options: EngineDriverOptions) {
    this.#options = options
    this.listens = options.listens ?? false
  }

  async start(start: StartOptions): Promise<void> {
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

  /** Resolves when the proxy has repaired a change that someone else makes after the call. */
  async repaired(limitMs: number): Promise<void> {
    await this.#ask({ ask: 'repaired', limitMs })
  }

  holdings(): Promise<readonly string[]> {
    return this.#options.holdings(this.#start as StartOptions)
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
    // The proxy must not outlive the test process.
    process.once('exit', () => child.kill('SIGKILL'))
    return child
  }

  async #ask(request: DriverRequest): Promise<unknown> {
    const child = this.#child as ChildProcess
    const over = new AbortController()
    const died = once(child, 'exit', { signal: over.signal }).then(([code]) => {
      throw new Error(`the proxy ended with ${code}`)
    })
    died.catch(() => undefined)
    const answered = once(child, 'message', { signal: over.signal })
    child.send(request)
    const [message] = (await Promise.race([answered, died])) as [{ result?: unknown; error?: string }]
    over.abort()
    if (message.error !== undefined) throw new Error(message.error)
    return message.result
  }
}
