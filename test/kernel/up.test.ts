// Runs `sluice up` as a process: the demo from start to end, what the next run removes after a kill, and a load balancer for one machine.

import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { lockDemo } from '../support/demo-lock.ts'
import { answers, examples, machine, program, publish, start, undo } from './up-process.ts'

lockDemo()

const demos = () =>
  readdirSync('/run/netns').filter((name) => /^sluice\d*-(client|node1|node2|shell|hello|saythx)/.test(name))

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
    expect(stdout).toMatch(/work\/saythx-redis +IPv4 +1 +1 +4\/4 +ok/)
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

describe('sluice up, for one machine', () => {
  it('balances from a directory of YAML, follows changes of the files, and removes its rules at the end', async () => {
    const space = await machine()
    const folder = mkdtempSync(join(tmpdir(), 'sluice-up-'))
    undo.push(() => rmSync(folder, { recursive: true, force: true }))
    cpSync(join(examples, 'standalone'), folder, { recursive: true })
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
    const argv = ['up', '--mode', 'userspace', '--manifests', join(open.examples, 'standalone'), '--node', 'alone']
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
