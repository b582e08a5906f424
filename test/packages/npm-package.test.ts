// Installs what `npm pack` makes, as `npm install -g` does, into a folder of its own: programs, man pages and completion come with it.

import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { manPages } from '../../packaging/man-pages.ts'

const repo = join(import.meta.dirname, '../..')
const prefix = mkdtempSync(join(tmpdir(), 'sluice-npm-'))
const npm = (...args: readonly string[]) => execFileSync('npm', args, { cwd: repo, encoding: 'utf8', stdio: 'pipe' })
const run = (...[program = '', ...args]: readonly string[]) =>
  spawnSync(join(prefix, 'bin', program), args, {
    cwd: '/',
    encoding: 'utf8',
    env: { PATH: `${join(prefix, 'bin')}:${dirname(process.execPath)}:/usr/sbin:/usr/bin:/sbin:/bin`, HOME: prefix },
  })

beforeAll(() => {
  npm('pack', '--pack-destination', prefix)
  const [archive = ''] = readdirSync(prefix).filter((name) => name.endsWith('.tgz'))
  const quiet = ['--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline']
  npm('install', '--global', '--prefix', prefix, ...quiet, join(prefix, archive))
}, 300_000)
afterAll(() => rmSync(prefix, { recursive: true, force: true }))

describe('the npm package', () => {
  it('brings both programs, which run without a build, native code included', () => {
    expect(run('sluice', 'version').stdout).toMatch(/^sluice \d/)
    expect(run('kube-proxy', '--version').stdout).toBe('Kubernetes v1.36.4\n')
    const manifests = join(prefix, 'lib/node_modules/sluice/examples/standalone')
    expect(run('sluice', 'explain', 'web', '--manifests', manifests).stdout).toContain('default/web')
  })

  it('brings the man pages of every command', async () => {
    const folder = join(prefix, 'share/man/man8')
    expect(readdirSync(folder).sort()).toEqual([...(await manPages()).keys()].sort())
    const page = spawnSync('man', ['-M', join(prefix, 'share/man'), 'sluice-up'], { encoding: 'utf8' })
    if (page.error === undefined) expect(page.stdout).toContain('--service-node-port-range')
  })

  it('brings the completion scripts that the program prints', () => {
    const folder = join(prefix, 'lib/node_modules/sluice/dist/completion')
    for (const [shell, name] of [
      ['bash', 'sluice'],
      ['zsh', '_sluice'],
      ['fish', 'sluice.fish'],
    ] as const) {
      expect(existsSync(join(folder, shell, name))).toBe(true)
      expect(readFileSync(join(folder, shell, name), 'utf8')).toBe(run('sluice', 'completion', shell).stdout)
    }
  })
})
