// The whole program on a node, with exactly the privileges of a mode: user, capabilities, writable files, programs and system calls.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { SeccompProfile } from '../../packaging/privileges.ts'
import type { Namespace } from '../lab/namespace.ts'
import { timeLimit } from '../lab/vm.ts'
import { type PublishedProgram, publishProgram } from '../support/publish-program.ts'
import { until } from '../support/until.ts'
import type { Confinement } from './confine.worker.ts'
import { compileProfile, encodeProgram } from './seccomp-filter.ts'

let published: Promise<PublishedProgram> | undefined

/** It runs a second time as another user, who may not be allowed to enter the checkout. */
function publishConfiner(): Promise<PublishedProgram> {
  published ??= publishProgram(join(import.meta.dirname, 'confine.worker.ts')).then((program) => {
    process.once('exit', () => program.remove())
    return program
  })
  return published
}

export interface ConfinedProxyOptions {
  readonly node: Namespace
  /** The command line up to the flags. */
  readonly program: readonly string[]
  readonly flags: readonly string[]
  readonly uid: number
  /** Without the prefix CAP_. */
  readonly capabilities: readonly string[]
  readonly writable: readonly string[]
  /** The filter for system calls; undefined allows all of them. */
  readonly profile?: SeccompProfile
  /** The file that gets a record of system calls, and which. */
  readonly record?: { readonly file: string; readonly calls: 'all' | 'execve' }
  readonly resolver?: string
}

/** Options for setpriv that leave these capabilities alone, also in the programs that the proxy starts. */
export function setprivOptions(uid: number, capabilities: readonly string[]): readonly string[] {
  const set = ['-all', ...capabilities.map((name) => `+${name.toLowerCase()}`)].join(',')
  return [
    ...[`--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', '--no-new-privs'],
    ...[`--bounding-set=${set}`, `--inh-caps=${set}`, ...(uid === 0 ? [] : [`--ambient-caps=${set}`])],
  ]
}

export class ConfinedProxy {
  log = ''
  readonly child: ChildProcess
  readonly exited: Promise<readonly [code: number | null, signal: NodeJS.Signals | null]>
  /** Resolves when the log is whole; an exit may be reported before the last output has been read. */
  readonly logged: Promise<unknown>
  readonly #node: Namespace
  readonly #folder: string
  readonly #kill = () => void this.child.kill('SIGKILL')

  private constructor(child: ChildProcess, node: Namespace, folder: string) {
    this.child = child
    this.#node = node
    this.#folder = folder
    this.exited = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>
    this.logged = once(child, 'close')
    child.stderr?.on('data', (chunk) => {
      this.log += chunk
    })
    process.once('exit', this.#kill)
  }

  static async start(options: ConfinedProxyOptions): Promise<ConfinedProxy> {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-confined-'))
    chmodSync(folder, 0o755)
    const confinement = JSON.stringify(confine(options, folder))
    const { command } = await publishConfiner()
    const args = ['netns', 'exec', options.node.name, ...command, confinement]
    const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' }
    const child = spawn('ip', args, { stdio: ['ignore', 'ignore', 'pipe'], env })
    return new ConfinedProxy(child, options.node, folder)
  }

  /** Resolves when the first sync of IPv4 is written; rejects if the process ends before. */
  async waitUntilSynced(): Promise<void> {
    const synced = async () =>
      /last_timestamp_seconds\{ip_family="IPv4"\} [1-9]/.test(await this.get(10249, '/metrics'))
    await this.unlessItEnds(until('the proxy has synced', synced, { limitMs: timeLimit(60_000), everyMs: 100 }))
  }

  /** Waits for the work; rejects at once, with the end of the log, if the process ends before. */
  async unlessItEnds<T>(work: Promise<T>): Promise<T> {
    const ended = this.exited.then(([code, signal]) => {
      throw new Error(`the proxy ended with ${code ?? signal}: ${this.log.slice(-3000)}`)
    })
    work.catch(() => undefined)
    return await Promise.race([work, ended])
  }

  async get(port: number, path: string): Promise<string> {
    return (await this.#node.exec('curl', ['-s', '-m', '60', `http://127.0.0.1:${port}${path}`])).stdout
  }

  async stop(): Promise<readonly [number | null, NodeJS.Signals | null]> {
    this.child.kill('SIGTERM')
    return await this.exited
  }

  /** Ends it if it still runs, and removes its files. */
  async close(): Promise<void> {
    this.#kill()
    await this.exited
    process.removeListener('exit', this.#kill)
    rmSync(this.#folder, { recursive: true, force: true })
  }
}

function confine(options: ConfinedProxyOptions, folder: string): Confinement {
  const { uid, capabilities, profile, record, resolver } = options
  const binds: Record<string, string> = {}
  if (resolver !== undefined) {
    writeFileSync(join(folder, 'resolv.conf'), `nameserver ${resolver}\noptions attempts:1 timeout:2\n`)
    binds['/etc/resolv.conf'] = join(folder, 'resolv.conf')
  }
  const filter = join(folder, 'filter')
  if (profile !== undefined) writeFileSync(filter, encodeProgram(compileProfile(profile)))
  return {
    binds,
    owner: uid,
    writable: [...options.writable, ...(record === undefined ? [] : [record.file])],
    setpriv: setprivOptions(uid, capabilities),
    ...(record !== undefined && { tracer: [...tracer, '-e', `trace=${record.calls}`, '-o', record.file] }),
    ...(profile !== undefined && { filter }),
    command: [...options.program, ...options.flags],
  }
}

/** The traced program keeps the process id, and strace with its filter stops it only at the calls that are recorded. */
const tracer = ['/usr/bin/strace', '-D', '-f', '-qq', '--seccomp-bpf', '-s', '200']
