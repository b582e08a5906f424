// Checks the single executable of this machine's architecture: names, native code, no writable file system, no file left behind.

import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { makeExecutable } from '../../packaging/executable.ts'
import { koffiAddon } from '../../packaging/inputs.ts'
import { clusterIp, NodeNetwork, nodeIp } from '../kernel/node-network.ts'
import { web } from '../kernel/web-service.ts'
import { WholeProxy } from '../kernel/whole-proxy.ts'
import { serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { whyNotPackage } from './packaging-tools.ts'

const missing = whyNotPackage('amd64')
if (missing !== undefined) process.stdout.write(`SKIPPED the executable: ${missing}\n`)

describe.skipIf(missing !== undefined)('the executable', () => {
  let executable = ''
  beforeAll(async () => {
    executable = await makeExecutable('amd64')
  })

  it('is sluice by its own name, and kube-proxy by that name', () => {
    expect(spawnSync(executable, ['version'], { encoding: 'utf8' }).stdout).toMatch(/^sluice \d/)
    const asKubeProxy = spawnSync(executable, ['--version'], { argv0: 'kube-proxy', encoding: 'utf8' })
    expect(asKubeProxy).toMatchObject({ stdout: 'Kubernetes v1.36.4\n', stderr: '', status: 0 })
  })

  // `doctor` asks the kernel for its nftables, through native code.
  const nftablesLine = /^\S+ +mode nftables +(.*)$/m

  it('calls native code from its own copy of the addon, which leaves no file behind', () => {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-test-'))
    try {
      const { stdout } = spawnSync(executable, ['doctor'], { encoding: 'utf8', env: { TMPDIR: folder } })
      expect(nftablesLine.exec(stdout)?.[1]).not.toMatch(/koffi|EROFS|ENOENT/)
      expect(readdirSync(folder)).toEqual([])
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  it('reads its environment when it runs, not when it is made', () => {
    const debug = spawnSync(executable, ['doctor'], { encoding: 'utf8', env: { SLUICE_NETLINK_DEBUG: '1' } })
    expect(debug.stderr).toMatch(/^send /m)
    expect(spawnSync(executable, ['doctor'], { encoding: 'utf8', env: {} }).stderr).not.toMatch(/^send /m)
  })

  it('is the same if it is made again: its snapshot says nothing about the process that made it', async () => {
    const first = readFileSync(executable)
    expect(readFileSync(await makeExecutable('amd64')).equals(first)).toBe(true)
  })

  it.skipIf(process.getuid?.() !== 0)('serves a Service, and knows its own process and start', async () => {
    const network = await NodeNetwork.create()
    const folder = mkdtempSync(join(tmpdir(), 'sluice-test-'))
    const admin = join(folder, 'admin')
    try {
      const startedAt = Math.floor(Date.now() / 1000)
      const api = await serveObjects(network.node, nodeName, nodeIp, web().put)
      const command = [executable, 'proxy']
      const env = { SLUICE_ADMIN_SOCKET: admin }
      const proxy = await WholeProxy.start({ network, api, mode: 'nftables', command, env })
      try {
        await until('the Service answers', async () => /^10\.180/.test(await network.ask(clusterIp, 80)))
        const metrics = await proxy.metrics()
        const start = Number(/^process_start_time_seconds (\d+)/m.exec(metrics)?.[1])
        expect(start).toBeGreaterThanOrEqual(startedAt)
        expect(start).toBeLessThanOrEqual(Date.now() / 1000)
        const status = spawnSync('curl', ['-s', '--unix-socket', admin, 'http://localhost/v1/summary'])
        expect(JSON.parse(status.stdout.toString())).toMatchObject({ pid: proxy.child.pid })
      } finally {
        await proxy.stop()
        api.close()
      }
    } finally {
      await network.close()
      rmSync(folder, { recursive: true })
    }
  })

  describe.skipIf(process.getuid?.() !== 0)('on a read-only file system', () => {
    const root = mkdtempSync(join(tmpdir(), 'sluice-root-'))
    afterAll(() => rmSync(root, { recursive: true }))

    /** Runs the executable in the root, of which a mount namespace sees a read-only copy. */
    const doctor = (): string => {
      const mounts = `mount --bind ${root} ${root} && mount -o remount,ro,bind ${root} && mount -t proc none ${root}/proc`
      const script = `${mounts} && exec chroot ${root} /usr/bin/sluice doctor`
      return spawnSync('unshare', ['-mn', 'sh', '-ec', script], { encoding: 'utf8', timeout: 60_000 }).stdout
    }

    beforeAll(() => {
      mkdirSync(join(root, 'proc'))
      for (const library of librariesOf(executable)) copy(library, join(root, library))
      copy(executable, join(root, 'usr/bin/sluice'))
    })

    it('says where the addon may be installed', () => {
      // The table shortens a long finding; the text below it has the whole sentence.
      expect(doctor()).toMatch(/cannot be unpacked: .*\/usr\/lib\/sluice\/koffi\.node/)
    })

    it('calls native code from the addon that is installed beside it', () => {
      copy(koffiAddon('amd64'), join(root, 'usr/lib/sluice/koffi.node'))
      const found = doctor()
      expect(nftablesLine.exec(found)?.[1]).not.toMatch(/koffi|EROFS|ENOENT/)
      expect(found).not.toContain('cannot be unpacked')
    })
  })
})

/** The shared libraries of a program, the dynamic linker included. */
function librariesOf(program: string): readonly string[] {
  const { stdout } = spawnSync('ldd', [program], { encoding: 'utf8' })
  return [...stdout.matchAll(/(\/\S+) \(0x/g)].map((match) => match[1] as string)
}

function copy(from: string, to: string): void {
  mkdirSync(dirname(to), { recursive: true })
  copyFileSync(from, to)
}
