// Checks the systemd units with systemd itself: it knows every setting, and finds every program and man page that they name.

import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { deployFolder } from './rendered-manifests.ts'

const has = spawnSync('systemd-analyze', ['--version']).status === 0
if (!has) process.stdout.write('SKIPPED systemd units: there is no systemd-analyze\n')

describe.skipIf(!has)('the systemd units', () => {
  const root = mkdtempSync(join(tmpdir(), 'sluice-systemd-'))
  afterAll(() => rmSync(root, { recursive: true }))
  const units = readdirSync(join(deployFolder, 'systemd'))

  function install(): void {
    const folder = join(root, 'lib/systemd/system')
    cpSync('/lib/systemd/system', folder, { recursive: true, verbatimSymlinks: true })
    for (const unit of units) cpSync(join(deployFolder, 'systemd', unit), join(folder, unit))
    mkdirSync(join(root, 'usr/bin'), { recursive: true })
    writeFileSync(join(root, 'usr/bin/sluice'), '', { mode: 0o755 })
    symlinkSync('sluice', join(root, 'usr/bin/kube-proxy'))
  }

  it('are valid', () => {
    install()
    const { status, stdout, stderr } = spawnSync(
      'systemd-analyze',
      ['verify', '--man=no', `--root=${root}`, ...units],
      {
        encoding: 'utf8',
      },
    )
    expect({ status, text: `${stdout}${stderr}` }).toEqual({ status: 0, text: '' })
  })

  it.each(units)('%s is not exposed more than is known', (unit) => {
    const args = ['security', '--offline=true', '--no-pager', '--threshold=50', join(deployFolder, 'systemd', unit)]
    const { status, stdout } = spawnSync('systemd-analyze', args, { encoding: 'utf8' })
    expect(status, stdout).toBe(0)
  })
})
