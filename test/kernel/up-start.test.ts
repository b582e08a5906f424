// What `sluice up` says at once when it cannot work, how it ends while it waits, and where a load balancer for one machine answers.

import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { release, tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { lockDemo } from '../support/demo-lock.ts'
import { answers, bareMachine, examples, inside, machine, publish, start, undo } from './up-process.ts'

lockDemo()

const web = join(examples, 'standalone')
const both = ['10.9.0.11', '10.9.0.12']
const [major = 0, minor = 0] = release().split('.').map(Number)

/** Runs a command that must fail, and returns the one line that it prints. */
async function refusal(argv: readonly string[], space: string): Promise<string> {
  const run = start(['up', ...argv], inside(space))
  expect(await run.ended, run.text()).toBe(1)
  const lines = run.text().trimEnd().split('\n')
  expect(lines.filter((line) => !line.startsWith('Starting '))).toHaveLength(1)
  return lines.at(-1) as string
}

describe('sluice up says at once', () => {
  it('that the machine has no address, and advises --node-address', async () => {
    const line = await refusal(['--manifests', web], bareMachine())
    expect(line).toMatch(/^sluice up: this machine has no address but loopback .*: give --node-address IP$/)
  })

  it.skipIf(existsSync('/proc/net/ip_vs'))('that the kernel lacks the module of the mode', async () => {
    const space = await machine()
    for (const argv of [
      ['--mode', 'ipvs'],
      ['--mode', 'ipvs', '--demo'],
    ]) {
      expect(await refusal(argv, space)).toMatch(/^sluice up: this kernel has no IPVS: load the module ip_vs/)
    }
  })

  it('that another program has the port of the API server, and advises --port', async () => {
    const space = await machine()
    const listen = `require('net').createServer().listen(6443, '127.0.0.1', () => console.log('listens'))`
    const other = start([], [...inside(space), process.execPath, '-e', listen], {}, [])
    await other.until('listens')
    expect(await refusal([], space)).toBe(
      'sluice up: cannot listen on 127.0.0.1:6443: another program has this port: give --port PORT (0: any free port)',
    )
  })

  it('that HOME is not writable', async () => {
    const space = await machine()
    const home = mkdtempSync(join(tmpdir(), 'sluice-home-'))
    chmodSync(home, 0o755)
    undo.push(() => rmSync(home, { recursive: true, force: true }))
    const nobody = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', '--no-new-privs']
    const { program } = await publish()
    const env = { HOME: home, XDG_RUNTIME_DIR: '' }
    const run = start(['up', '--mode', 'userspace'], [...inside(space), ...nobody], env, program)
    expect(await run.ended).toBe(1)
    expect(run.text()).toMatch(
      /^sluice up: cannot create \S+\/\.cache\/sluice-up-\d+ \(EACCES\): name a writable directory with --state DIR, HOME or XDG_RUNTIME_DIR\n$/,
    )
  })

  it('that no route leads to cluster IPs, with advice that works when it is followed literally', async () => {
    const space = await machine({ route: false })
    const run = start(['up', '--manifests', web, '--node', 'alone'], inside(space))
    await run.until('Ctrl-C stops')
    const [, advice = ''] =
      /^No route leads to the cluster IPs 10\.96\.0\.0\/16, .*: (ip route add .*)$/m.exec(run.text()) ?? []
    expect(await answers(space, 'http://10.96.0.80/')).toEqual(['curl 7'])
    execFileSync('ip', ['netns', 'exec', space, ...advice.split(' ')])
    expect(await answers(space, 'http://10.96.0.80/')).toEqual(both)
  })
})

describe('sluice up, while it waits', () => {
  // Since 5.12 a table can have an owner. The second proxy waits for the first one to leave.
  it.skipIf(major < 5 || (major === 5 && minor < 12)).each(['SIGINT', 'SIGTERM'] as const)(
    'ends at %s, and its messages have lines of their own',
    async (signal) => {
      const space = await machine()
      const first = start(['up', '--node', 'first'], inside(space))
      await first.until('Ctrl-C stops')
      const second = start(['up', '--node', 'second', '--take-over', '--port', '0'], inside(space))
      await second.until('Sync failed')
      await second.until('Starting the proxy, mode nftables ...')
      second.child.kill(signal)
      // Its cleanup cannot remove the table of the first one, and says so.
      expect(await second.ended, second.text()).toBe(1)
      expect(second.text()).toMatch(/^sluice up: a running proxy owns table kube-proxy: stop it first/m)
      expect(second.text()).toMatch(/^Starting the proxy, mode nftables \.\.\. stopped \(\d+\.\d s\)$/m)
      for (const line of second.text().trimEnd().split('\n'))
        expect(line).toMatch(/^([WE]\d{4} |Starting |sluice up: )/)
      expect(first.child.exitCode).toBeNull()
    },
  )
})

describe('sluice up, for one machine', () => {
  it('serves port 80 and localhost, as examples/port-80 says', async () => {
    const space = await machine()
    const argv = [
      'up',
      '--manifests',
      join(examples, 'port-80'),
      '--node',
      'alone',
      '--service-node-port-range',
      '80-32767',
    ]
    const run = start(argv, inside(space))
    await run.until('Ctrl-C stops')
    for (const url of ['http://192.168.44.5/', 'http://localhost/', 'http://127.0.0.1/']) {
      expect(await answers(space, url), url).toEqual(both)
    }
  })

  it('serves node ports on localhost without a flag, and on the node address alone with one', async () => {
    const space = await machine()
    const run = start(['up', '--manifests', web, '--node', 'alone'], inside(space))
    await run.until('Ctrl-C stops')
    expect(await answers(space, 'http://localhost:30080/')).toEqual(both)
    expect(await answers(space, 'http://192.168.44.5:30080/')).toEqual(both)
    run.child.kill('SIGTERM')
    expect(await run.ended).toBe(0)
    const only = ['up', '--manifests', web, '--node', 'alone', '--nodeport-addresses', '192.168.44.0/24']
    const again = start(only, inside(space))
    await again.until('Ctrl-C stops')
    expect(await answers(space, 'http://localhost:30080/')).toEqual(['curl 7'])
    expect(await answers(space, 'http://192.168.44.5:30080/')).toEqual(both)
  })

  it('refuses a node port outside of the range, in the words of Kubernetes', async () => {
    const space = await machine()
    const run = start(['up', '--manifests', join(examples, 'port-80'), '--node', 'alone'], inside(space))
    await run.until('The range of valid ports is 30000-32767')
  })
})

describe('sluice up --demo', () => {
  it('prints commands that work as printed', async () => {
    const run = start(['up', '--demo'])
    await run.until('Ctrl-C stops')
    const commands = [...run.text().matchAll(/^ {2}# .*\n {2}(.*)$/gm)].map(([, command = '']) => command)
    expect(commands).toHaveLength(7)
    const hasKubectl = spawnSync('kubectl', ['version', '--client']).status === 0
    for (const command of commands) {
      if (command.startsWith('kubectl') && !hasKubectl) continue
      const { status, stdout, stderr } = spawnSync('bash', ['-c', command], { encoding: 'utf8', timeout: 60_000 })
      expect(status, `${command}\n${stderr}`).toBe(0)
      expect(stdout).not.toBe('')
    }
    expect(commands.some((command) => command.includes('--socket'))).toBe(false)
    // The API server is also a service, which a pod can reach.
    const api = [...inside('sluice-shell'), 'curl', '-sk', 'https://10.96.0.1/version']
    expect(execFileSync(api[0] as string, api.slice(1), { encoding: 'utf8' })).toContain('"gitVersion":"v1.36')
  })
})
