// Runs the executable of arm64 and unit tests on arm64's Node, under qemu-user. qemu-user has no netfilter sockets, so that only what needs
// no such socket can be tried: modes that write rules cannot.

import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { chownSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { makeExecutable } from '../../../packaging/executable.ts'
import { until } from '../../support/until.ts'
import { type Bundles, bundleTests } from '../../vm/bundle-tests.ts'
import type { Outcome } from '../../vm/runner.worker.ts'
import { whyNotPackage } from '../packaging-tools.ts'
import { EmulatedArm64, whyNotArm64 } from './emulated-arm64.ts'

const root = join(import.meta.dirname, '../../..')
const missing = whyNotArm64() ?? whyNotPackage('arm64')
if (missing !== undefined) process.stdout.write(`SKIPPED arm64: ${missing}\n`)

/** Folders whose code depends on the CPU: native calls, bytes of messages, arithmetic, and what is made of them. */
const folders = [
  'backend/ipvs',
  'backend/nftables',
  'config',
  'kube/decode',
  'kube/protobuf',
  'kube/reflect',
  'lib',
  'model',
  'sys',
]
/**
 * These start Node or other programs, which qemu-user cannot emulate too, need more of vitest than its runner and matchers, or wait for a
 * limited time, which is too short for an emulated CPU.
 */
const needsMore =
  /\bvi\.|toMatchFileSnapshot|expectTypeOf|execPath|bundleProgram|\bspawn|execFile|worker_threads|support\/until|reflector-harness/

const files = folders
  .flatMap((folder) =>
    readdirSync(join(root, 'test', folder), { recursive: true, encoding: 'utf8' }).map((name) => `${folder}/${name}`),
  )
  .filter((name) => name.endsWith('.test.ts'))
  .map((name) => `test/${name}`)
  .sort()
const isFit = (file: string): boolean => !needsMore.test(readFileSync(join(root, file), 'utf8'))
/** Native calls depend on the CPU most: everything of this file but the test that starts Node. */
const partly = new Map([['test/sys/libc.test.ts', '^(?!.*is not loaded until it is needed)']])
const fit = files.filter((file) => partly.has(file) || isFit(file))

const manifests = `apiVersion: v1
kind: Service
metadata: {name: hello}
spec:
  type: NodePort
  clusterIP: 10.96.0.80
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hello-1, labels: {kubernetes.io/service-name: hello}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.9.0.11]}]
`
const nobody = 65534

describe.skipIf(missing !== undefined)('arm64, under qemu-user', () => {
  const arm64 = new EmulatedArm64()
  beforeAll(() => arm64.unpackLibraries())
  afterAll(() => arm64.remove())

  describe('the executable', () => {
    const space = `sluice-arm64-${process.pid}`
    const folder = mkdtempSync(join(tmpdir(), 'sluice-arm64-up-'))
    let executable = ''
    let pod: ChildProcess
    beforeAll(async () => {
      executable = await makeExecutable('arm64')
      execFileSync('ip', ['netns', 'add', space])
      const links = ['link set lo up', 'link add eth0 type veth peer name eth1', 'link set eth1 up', 'link set eth0 up']
      const addresses = [
        'addr add 192.168.44.5/24 dev eth0',
        'addr add 10.9.0.11/32 dev lo',
        'route add default dev eth0',
      ]
      execFileSync('ip', ['-n', space, '-batch', '-'], { input: [...links, ...addresses].join('\n') })
      const script = "require('http').createServer((_, answer) => answer.end('pod')).listen(8080, '10.9.0.11')"
      pod = spawn('ip', ['netns', 'exec', space, process.execPath, '-e', script], { stdio: 'ignore' })
    })
    afterAll(() => {
      pod?.kill('SIGKILL')
      spawnSync('ip', ['netns', 'del', space])
      rmSync(folder, { recursive: true, force: true })
    })

    it('says its version', () => {
      const [program, ...args] = arm64.command(executable, 'version')
      expect(spawnSync(program, args, { encoding: 'utf8', timeout: 120_000 }).stdout).toMatch(/^sluice \d/)
    })

    it('serves with up --mode userspace, without privileges: cluster IPs and node ports on loopback', async () => {
      const home = join(folder, 'home')
      const directory = join(folder, 'manifests')
      mkdirSync(home)
      mkdirSync(directory)
      for (const path of [folder, home]) chownSync(path, nobody, nobody)
      writeFileSync(join(directory, 'hello.yaml'), manifests)
      const flags = ['up', '--mode', 'userspace', '--port', '0', '--manifests', directory]
      const drop = [
        'setpriv',
        `--reuid=${nobody}`,
        `--regid=${nobody}`,
        '--clear-groups',
        '--inh-caps=-all',
        '--bounding-set=-all',
      ]
      const up = spawn('ip', ['netns', 'exec', space, ...drop, ...arm64.command(executable, ...flags)], {
        env: { PATH: process.env.PATH, HOME: home, XDG_RUNTIME_DIR: home },
      })
      let log = ''
      for (const stream of [up.stdout, up.stderr]) stream.on('data', (chunk) => (log += chunk))
      const ended = new Promise<number | null>((resolve) => up.once('exit', resolve))
      const fetched = (url: string) =>
        spawnSync('ip', ['netns', 'exec', space, 'curl', '-s', '-m', '10', url], { encoding: 'utf8' }).stdout
      try {
        await until('it serves', () => log.includes('Ctrl-C stops it') || up.exitCode !== null, { limitMs: 240_000 })
        await until('the pod answers', () => fetched('http://127.0.0.1:30080/') === 'pod', { limitMs: 60_000 })
        expect(fetched('http://127.96.0.80:10080/')).toBe('pod')
      } catch (error) {
        throw new Error(`${(error as Error).message}; it printed:\n${log}`)
      } finally {
        up.kill('SIGINT')
      }
      expect(await ended).toBe(0)
      expect(log).toContain('Removing everything ... done')
    })
  })

  describe('a unit test', () => {
    let bundles: Bundles
    const results = mkdtempSync(join(tmpdir(), 'sluice-arm64-results-'))
    beforeAll(async () => {
      process.stdout.write(`arm64: ${fit.length} of ${files.length} unit test files of ${folders.join(', ')}\n`)
      bundles = await bundleTests(fit)
    })
    afterAll(() => {
      bundles?.remove()
      rmSync(results, { recursive: true })
    })

    it.each(fit)('of %s passes', (file) => {
      const path = join(results, 'outcomes.json')
      rmSync(path, { force: true })
      // Fewer random histories, since they take minutes.
      const env = { ...bundles.environment, SLUICE_RESULTS: path, RUNS: '30' }
      const pattern = partly.get(file)
      const args = [file, bundles.of(file), ...(pattern === undefined ? [] : [pattern])]
      const { status, stdout, stderr } = arm64.runNode(bundles.runner, args, env)
      const outcomes = readFileSync(path, 'utf8')
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as Outcome)
      expect(outcomes.filter(({ state }) => state === 'failed')).toEqual([])
      expect(
        outcomes.some(({ state }) => state === 'passed'),
        stdout,
      ).toBe(true)
      expect(status, stderr).toBe(0)
    })
  })
})
