// Installs and removes the Debian package and the npm package on a clean Debian root: everything is there, and nothing stays.

import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { cpSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { makeDeb } from '../../../packaging/deb.ts'
import { makeExecutable } from '../../../packaging/executable.ts'
import { nodeBinary } from '../../../packaging/inputs.ts'
import { DebianRoot } from './debian-root.ts'

const repo = join(import.meta.dirname, '../../..')
const sha256 = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex')

/** Every file of the root but the logs and the database of dpkg itself, which records that a package was there. */
const listFiles = (root: DebianRoot): readonly string[] =>
  root
    .run(
      'find',
      '/',
      '-xdev',
      '-not',
      '-path',
      '/var/lib/dpkg/*',
      '-not',
      '-path',
      '/var/log/*',
      '-not',
      '-path',
      '/proc/*',
    )
    .output.split('\n')
    .sort()

describe('the Debian package', () => {
  const root = new DebianRoot()
  let executable = ''
  let deb = ''
  beforeAll(async () => {
    executable = await makeExecutable('amd64')
    deb = await makeDeb('amd64', executable)
  })
  afterAll(() => root.remove())

  it('is the same in two builds, as the executable is', async () => {
    const first = [sha256(executable), sha256(deb)]
    expect([sha256(await makeExecutable('amd64')), sha256(await makeDeb('amd64', executable))]).toEqual(first)
  }, 1_800_000)

  let before: readonly string[] = []
  it('installs the program, its units, man pages, completion and configuration', () => {
    const path = root.add(deb)
    before = listFiles(root).filter((file) => file !== path)
    expect(root.run('dpkg', '-i', path)).toMatchObject({ status: 0 })
    rmSync(join(root.path, path))
    expect(root.run('kube-proxy', '--version').output).toBe('Kubernetes v1.36.4\n')
    expect(root.run('sluice', 'version').output).toMatch(/^sluice \d/)
    const added = listFiles(root).filter((file) => !before.includes(file))
    expect(added).toEqual(
      expect.arrayContaining([
        '/etc/sluice/config.conf',
        '/etc/sluice/manifests',
        '/usr/bin/kube-proxy',
        '/usr/bin/sluice',
        '/usr/lib/sluice/koffi.node',
        '/usr/lib/systemd/system/sluice-proxy.service',
        '/usr/lib/systemd/system/sluice.service',
        '/usr/share/bash-completion/completions/sluice',
        '/usr/share/fish/vendor_completions.d/sluice.fish',
        '/usr/share/man/man8/kube-proxy.8.gz',
        '/usr/share/man/man8/sluice-explain.8.gz',
        '/usr/share/man/man8/sluice.8.gz',
        '/usr/share/zsh/vendor-completions/_sluice',
      ]),
    )
    expect(root.run('dpkg', '--verify', 'sluice').output).toBe('')
  })

  it('calls native code there without a temporary file', () => {
    const { output } = root.run('env', 'TMPDIR=/nowhere', 'sluice', 'doctor')
    expect(output).toMatch(/^ok +mode nftables/m)
  })

  it('keeps the configuration of its user when it is removed, and nothing when it is purged', () => {
    expect(root.run('dpkg', '--remove', 'sluice')).toMatchObject({ status: 0 })
    const kept = listFiles(root).filter((file) => !before.includes(file))
    expect(kept).toEqual(['/etc/sluice', '/etc/sluice/config.conf'])
    expect(root.run('dpkg', '--purge', 'sluice')).toMatchObject({ status: 0 })
    expect(listFiles(root)).toEqual(before)
  })
})

describe('the npm package', () => {
  const root = new DebianRoot()
  const work = mkdtempSync(join(tmpdir(), 'sluice-npm-'))
  afterAll(() => {
    root.remove()
    rmSync(work, { recursive: true })
  })

  /** npm comes from this machine, Node from the registry; the packages that Sluice depends on come from npm's cache or the registry. */
  const npm = (...args: string[]): string =>
    execFileSync(
      'npm',
      [...args, '--prefix', join(root.path, 'usr/local'), '-g', '--ignore-scripts', '--loglevel=error'],
      {
        encoding: 'utf8',
        timeout: 300_000,
      },
    )

  it('installs both programs, which run, and goes without a trace', () => {
    const [{ filename }] = JSON.parse(
      execFileSync('npm', ['pack', '--json', '--pack-destination', work, '--loglevel=error'], {
        cwd: repo,
        encoding: 'utf8',
      }),
    ) as [{ filename: string }]
    cpSync(nodeBinary('amd64'), join(root.path, 'usr/bin/node'))
    const before = listFiles(root)
    npm('install', join(work, basename(filename)))
    expect(root.run('kube-proxy', '--version').output).toBe('Kubernetes v1.36.4\n')
    expect(root.run('sluice', 'doctor').output).toMatch(/^ok +mode nftables/m)
    npm('uninstall', 'sluice')
    const left = listFiles(root).filter((file) => !before.includes(file))
    // npm makes these folders and leaves them.
    expect(left.filter((file) => !/^\/usr\/local\/(lib\/node_modules|share\/man\/man\d)$/.test(file))).toEqual([])
  })
})
