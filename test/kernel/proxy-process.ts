// The real engine and backend on the node of a NodeNetwork, in a process of its own that a test can kill.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { Change } from '../lab/driver.ts'
import type { DriverRequest } from '../lab/engine.worker.ts'
import type { Manifest } from '../scenarios/format.ts'
import { nodeSettings } from '../scenarios/node-settings.ts'
import { bundleProgram } from '../support/bundle-program.ts'
import { type NodeNetwork, nodeIp } from './node-network.ts'

let bundled: Promise<string> | undefined

/** Bundles the program: it starts in a tenth of the time that compiling at each start takes. */
function bundle(): Promise<string> {
  bundled ??= bundleProgram(join(import.meta.dirname, '../lab/engine.worker.ts')).then(({ file, remove }) => {
    process.once('exit', remove)
    return file
  })
  return bundled
}

export class ProxyProcess {
  /** Everything it has logged. */
  log = ''
  readonly #child: ChildProcess
  readonly #exited: Promise<unknown>

  private constructor(child: ChildProcess) {
    this.#child = child
    this.#exited = once(child, 'exit')
    child.stderr?.on('data', (chunk) => {
      this.log += chunk
    })
    process.once('exit', this.#end)
  }

  readonly #end = () => void this.#child.kill('SIGKILL')

  /** Starts it with the services in `initial`. Does not wait for the first sync. */
  static async start(
    network: NodeNetwork,
    initial: readonly Manifest[] = [],
    env: NodeJS.ProcessEnv = {},
    mode: 'iptables' | 'userspace' = 'iptables',
  ): Promise<ProxyProcess> {
    const args = ['netns', 'exec', network.node.name, process.execPath, await bundle()]
    const child = spawn('ip', args, {
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
      env: { ...process.env, SLUICE_TEST_V: '2', ...env },
    })
    const proxy = new ProxyProcess(child)
    network.proxies.push(proxy)
    await proxy.ask({
      ask: 'start',
      mode,
      families: [4],
      settings: nodeSettings(mode, [4], [{ addresses: [nodeIp] }]),
      interfaceAddresses: ['127.0.0.1', nodeIp, '10.255.0.1'],
      initial,
    })
    return proxy
  }

  async apply(change: Change): Promise<void> {
    await this.ask({ ask: 'apply', ...change })
  }

  async settle(): Promise<void> {
    await this.ask({ ask: 'settle' })
  }

  async ask(ask: DriverRequest): Promise<unknown> {
    const answered = once(this.#child, 'message')
    this.#child.send(ask)
    const exited = this.#exited.then(() => {
      throw new Error(`the proxy is has ended: ${this.log.slice(-2000)}`)
    })
    const [message] = (await Promise.race([answered, exited])) as [{ result?: unknown; error?: string }]
    if (message.error !== undefined) throw new Error(message.error)
    return message.result
  }

  /** Kills the process; the rules stay. */
  async kill(): Promise<void> {
    this.#end()
    await this.#exited
    process.removeListener('exit', this.#end)
  }
}
