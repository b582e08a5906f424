// Runs `sluice up` as a process, in network namespaces that stand for machines; everything is undone after each test.

import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { cpSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach } from 'vitest'
import { publishProgram } from '../support/publish-program.ts'

const root = join(import.meta.dirname, '../..')
const worker = join(root, 'test/commands/sluice.worker.ts')
export const examples = join(root, 'examples')
/** The command line of `sluice` from source. */
export const program: readonly string[] = [process.execPath, '--import', 'tsx', worker]

/** Steps that undo what a test did, in the order in which it was done. */
export const undo: (() => unknown)[] = []
afterEach(async () => {
  for (const step of undo.splice(0).reverse()) await step()
})

export function start(
  argv: readonly string[],
  wrapper: readonly string[] = [],
  env: NodeJS.ProcessEnv = {},
  ours = program,
) {
  const [command, ...args] = [...wrapper, ...ours, ...argv] as [string, ...string[]]
  const child: ChildProcess = spawn(command, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...env },
  })
  let text = ''
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', (chunk) => (text += chunk))
  const ended = new Promise<number | null>((resolve) => child.on('close', (code) => resolve(code)))
  undo.push(() => stop(child, ended))
  return {
    child,
    text: () => text,
    ended,
    async until(what: string) {
      const end = Date.now() + 60_000
      while (!text.includes(what)) {
        if (Date.now() > end || child.exitCode !== null) throw new Error(`no "${what}" in:\n${text}`)
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
    },
  }
}

/** Lets the process remove what it made. */
async function stop(child: ChildProcess, ended: Promise<unknown>): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), 20_000)
  await ended
  clearTimeout(timer)
}

/** Makes a network namespace with an interface that is up, and loopback. */
export function bareMachine(...commands: readonly string[]): string {
  const name = `sluice-up-${process.pid}-${undo.length}`
  execFileSync('ip', ['netns', 'add', name])
  undo.push(() => execFileSync('ip', ['netns', 'del', name]))
  execFileSync('ip', ['-n', name, '-batch', '-'], { input: ['link set lo up', ...commands].join('\n') })
  return name
}

/** Returns the prefix of a command line that runs in the namespace. */
export const inside = (space: string): readonly string[] => ['ip', 'netns', 'exec', space]

/** Makes a network namespace with the two servers of the examples; each answers HTTP with its address. */
export async function machine({ route = true } = {}): Promise<string> {
  const name = bareMachine(
    'link add eth0 type veth peer name eth1',
    'link set eth1 up',
    'link set eth0 up',
    'addr add 192.168.44.5/24 dev eth0',
    'addr add 10.9.0.11/32 dev lo',
    'addr add 10.9.0.12/32 dev lo',
    ...(route ? ['route add default dev eth0'] : []),
  )
  const script = `for (const ip of ['10.9.0.11', '10.9.0.12']) require('http').createServer((q, r) => r.end(ip)).listen(8080, ip)`
  const server = spawn('ip', ['netns', 'exec', name, process.execPath, '-e', script], { stdio: 'ignore' })
  undo.push(() => server.kill('SIGKILL'))
  return name
}

/** Returns the different answers of 30 connections; `curl STATUS` for a connection that failed. */
export async function answers(space: string, url: string): Promise<readonly string[]> {
  const seen = new Set<string>()
  for (let i = 0; i < 30; i++) {
    const { status, stdout } = spawnSync('ip', ['netns', 'exec', space, 'curl', '-s', '--max-time', '3', url], {
      encoding: 'utf8',
    })
    seen.add(status === 0 ? stdout : `curl ${status}`)
  }
  return [...seen].sort()
}

/** Copies the program and the examples to where every user may read them. */
export async function publish(): Promise<{ program: readonly string[]; examples: string }> {
  const { folder, command, remove } = await publishProgram(worker)
  undo.push(remove)
  cpSync(examples, join(folder, 'examples'), { recursive: true })
  return { program: command, examples: join(folder, 'examples') }
}
