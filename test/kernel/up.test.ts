// Runs `sluice up` as a process: the demo from start to end, what the next run removes after a kill, and a load balancer for one machine.

import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { publishProgram } from '../support/publish-program.ts'

const root = join(import.meta.dirname, '../..')
const worker = join(root, 'test/commands/sluice.worker.ts')
const examples = join(root, 'examples/standalone')
const program: readonly string[] = [process.execPath, '--import', 'tsx', worker]

const undo: (() => void)[] = []
afterEach(() => {
  for (const step of undo.splice(0).reverse()) step()
})

const demos = () =>
  readdirSync('/run/netns').filter((name) => /^sluice\d*-(client|node1|node2|shell|hello|saythx)/.test(name))

function start(argv: readonly string[], wrapper: readonly string[] = [], env: NodeJS.ProcessEnv = {}, ours = program) {
  const [command, ...args] = [...wrapper, ...ours, ...argv] as [string, ...string[]]
  const child: ChildProcess = spawn(command, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...env },
  })
  undo.push(() => child.kill('SIGKILL'))
  let text = ''
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', (chunk) => (text += chunk))
  const ended = new Promise<number | null>((resolve) => child.on('close', (code) => resolve(code)))
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

describe('sluice up --demo', () => {
  it.each(['nftables', 'iptables', 'userspace'])(
    'passes all checks with --once and leaves nothing behind: %s',
    async (mode) => {
      const before = demos()
      const run = start(['up', '--demo', '--once', '--mode', mode])
      expect(await run.ended, run.text()).toBe(0)
      expect(run.text().match(/^ {2}ok: /gm)).toHaveLength(7)
      expect(run.text()).not.toContain('FAILED')
      expect(demos()).toEqual(before)
      expect(existsSync('/run/sluice/sluice-node1.sock')).toBe(false)
    },
  )

  it('is removed by a signal, together with what a killed demo left', async () => {
    const killed = start(['up', '--demo'])
    await killed.until('Ctrl-C stops')
    expect(demos().length).toBeGreaterThan(0)
    const { stdout } = spawnSync(
      program[0] as string,
      [...program.slice(1), 'status', '--socket', '/run/sluice/sluice-node1.sock'],
      { encoding: 'utf8' },
    )
    expect(stdout).toMatch(/work\/saythx-redis +IPv4 +1 +1 +4 +4\/4 +ok/)
    killed.child.kill('SIGKILL')
    await killed.ended
    // The next demo removes what the killed one left.
    const next = start(['up', '--demo', '--scale', '2'])
    await next.until('Ctrl-C stops')
    next.child.kill('SIGTERM')
    expect(await next.ended, next.text()).toBe(0)
    expect(demos()).toEqual([])
    expect(existsSync('/run/sluice/demo')).toBe(false)
  })
})

/** Makes a network namespace with the two servers of the examples; each answers HTTP with its address. */
async function machine(): Promise<string> {
  const name = `sluice-up-${process.pid}-${undo.length}`
  execFileSync('ip', ['netns', 'add', name])
  undo.push(() => execFileSync('ip', ['netns', 'del', name]))
  const commands = [
    'link set lo up',
    'link add eth0 type veth peer name eth1',
    'link set eth1 up',
    'link set eth0 up',
    'addr add 192.168.44.5/24 dev eth0',
    'addr add 10.9.0.11/32 dev lo',
    'addr add 10.9.0.12/32 dev lo',
    'route add default dev eth0',
  ]
  execFileSync('ip', ['-n', name, '-batch', '-'], { input: commands.join('\n') })
  const script = `for (const ip of ['10.9.0.11', '10.9.0.12']) require('http').createServer((q, r) => r.end(ip)).listen(8080, ip)`
  const server = spawn('ip', ['netns', 'exec', name, process.execPath, '-e', script], { stdio: 'ignore' })
  undo.push(() => server.kill('SIGKILL'))
  return name
}

/** Returns the different answers of 30 connections; `curl STATUS` for a connection that failed. */
async function answers(space: string, url: string): Promise<readonly string[]> {
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
async function publish(): Promise<{ program: readonly string[]; examples: string }> {
  const { folder, command, remove } = await publishProgram(worker)
  undo.push(remove)
  cpSync(examples, join(folder, 'examples'), { recursive: true })
  return { program: command, examples: join(folder, 'examples') }
}

describe('sluice up, for one machine', () => {
  it('balances from a directory of YAML, follows changes of the files, and removes its rules at the end', async () => {
    const space = await machine()
    const folder = mkdtempSync(join(tmpdir(), 'sluice-up-'))
    undo.push(() => rmSync(folder, { recursive: true, force: true }))
    cpSync(examples, folder, { recursive: true })
    const run = start(['up', '--manifests', folder, '--node', 'alone'], ['ip', 'netns', 'exec', space])
    await run.until('Ctrl-C stops')
    expect(await answers(space, 'http://10.96.0.80/')).toEqual(['10.9.0.11', '10.9.0.12'])
    expect(await answers(space, 'http://192.168.44.5:30080/')).toEqual(['10.9.0.11', '10.9.0.12'])
    const web = execFileSync('cat', [join(folder, 'web.yaml')], { encoding: 'utf8' })
    writeFileSync(join(folder, 'web.yaml'), web.replace('  - addresses: [10.9.0.12]\n', ''))
    const end = Date.now() + 20_000
    while ((await answers(space, 'http://10.96.0.80/')).length > 1 && Date.now() < end);
    expect(await answers(space, 'http://10.96.0.80/')).toEqual(['10.9.0.11'])
    run.child.kill('SIGTERM')
    expect(await run.ended, run.text()).toBe(0)
    const { stdout } = spawnSync('ip', ['netns', 'exec', space, 'nft', 'list', 'tables'], { encoding: 'utf8' })
    expect(stdout).not.toContain('kube-proxy')
  })

  it('refuses to take over the rules of another proxy, and says how to allow it', async () => {
    const space = await machine()
    const inside = ['ip', 'netns', 'exec', space]
    execFileSync('ip', ['netns', 'exec', space, 'nft', 'add table ip kube-proxy'])
    const run = start(['up', '--node', 'taken'], inside)
    expect(await run.ended).toBe(1)
    expect(run.text()).toMatch(
      /^sluice up: a proxy has rules on this machine \(table kube-proxy in nf_tables, IPv4\): .*--take-over\n$/,
    )
    const dry = spawnSync(inside[0] as string, [...inside.slice(1), ...program, 'cleanup', '--dry-run'], {
      encoding: 'utf8',
    })
    expect(dry).toMatchObject({
      status: 2,
      stdout: expect.stringMatching(/nftables +table kube-proxy +nf_tables, IPv4/),
    })
    const real = spawnSync(inside[0] as string, [...inside.slice(1), ...program, 'cleanup'], { encoding: 'utf8' })
    expect(real).toMatchObject({ status: 0, stdout: expect.stringMatching(/nftables +removed/) })
    const again = spawnSync(inside[0] as string, [...inside.slice(1), ...program, 'cleanup', '--dry-run'], {
      encoding: 'utf8',
    })
    expect(again).toMatchObject({ status: 0, stdout: 'Nothing to remove.\n' })
  })

  it('works without privileges, with sockets on loopback', async () => {
    const space = await machine()
    const home = mkdtempSync(join(tmpdir(), 'sluice-home-'))
    chmodSync(home, 0o777)
    undo.push(() => rmSync(home, { recursive: true, force: true }))
    const nobody = [
      'ip',
      'netns',
      'exec',
      space,
      'setpriv',
      '--reuid=65534',
      '--regid=65534',
      '--clear-groups',
      '--no-new-privs',
    ]
    const env = { HOME: home, XDG_RUNTIME_DIR: home, TMPDIR: home }
    const open = await publish()
    const refused = start(['up', '--demo'], nobody, env, open.program)
    expect(await refused.ended).toBe(1)
    expect(refused.text()).toMatch(/^sluice up: this makes network namespaces, which needs root: .*--mode userspace/)
    const argv = ['up', '--mode', 'userspace', '--manifests', open.examples, '--node', 'alone']
    const run = start(argv, nobody, env, open.program)
    await run.until('Ctrl-C stops')
    expect(run.text()).toContain('cluster IP 10.a.b.c on 127.a.b.c')
    expect(await answers(space, 'http://127.0.0.1:30080/')).toEqual(['10.9.0.11', '10.9.0.12'])
    expect(await answers(space, 'http://127.96.0.80:10080/')).toEqual(['10.9.0.11', '10.9.0.12'])
    run.child.kill('SIGTERM')
    expect(await run.ended, run.text()).toBe(0)
    expect(readdirSync(home).filter((name) => name.startsWith('sluice-up'))).toEqual([])
  })
})
