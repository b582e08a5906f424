// Runs the systemd units under a real systemd, confined as they say: they serve, survive a kill, and leave the rules when they stop.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { makeExecutable } from '../../../packaging/executable.ts'
import { bundleProgram } from '../../support/bundle-program.ts'
import { until } from '../../support/until.ts'
import { whyNotPackage } from '../packaging-tools.ts'
import { deployFolder } from '../rendered-manifests.ts'
import { SystemdSystem, whyNotSystemd } from './systemd-system.ts'

const missing = whyNotSystemd() ?? whyNotPackage('amd64')
if (missing !== undefined) process.stdout.write(`SKIPPED units under systemd: ${missing}\n`)

const manifests = `apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {clusterIP: 10.96.0.80, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hello-1, labels: {kubernetes.io/service-name: hello}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.9.0.11]}]
`

/** Bits of capability sets. */
const bits = { DAC_OVERRIDE: 1, NET_ADMIN: 12, NET_RAW: 13, SYS_RESOURCE: 24 } as const
const maskOf = (names: readonly (keyof typeof bits)[]): bigint =>
  names.reduce((mask, name) => mask | (1n << BigInt(bits[name])), 0n)

describe.skipIf(missing !== undefined)('the units, under systemd', () => {
  const system = new SystemdSystem()
  const folder = mkdtempSync(join(tmpdir(), 'sluice-units-'))
  const children: ChildProcess[] = []
  const start = (...words: readonly string[]) => {
    const child = spawn('ip', ['netns', 'exec', system.space, ...words], { stdio: ['ignore', 'ignore', 'inherit'] })
    children.push(child)
  }

  beforeAll(async () => {
    await system.boot(await makeExecutable('amd64'))
    spawnSync('ip', ['-n', system.space, 'addr', 'add', '10.9.0.11/32', 'dev', 'lo'])
    const script = "require('http').createServer((_, answer) => answer.end('pod')).listen(8080, '10.9.0.11')"
    start(process.execPath, '-e', script)
  })
  afterAll(async () => {
    for (const child of children) child.kill('SIGKILL')
    await system.stop()
    rmSync(folder, { recursive: true, force: true })
  })

  const answers = (): boolean => {
    const words = ['netns', 'exec', system.space, 'curl', '-s', '-m', '3', 'http://10.96.0.80/']
    return spawnSync('ip', words, { encoding: 'utf8' }).stdout === 'pod'
  }
  const serves = (unit: string) =>
    until(`${unit} serves`, () => answers() && system.run('sluice', 'status').status === 0, {
      limitMs: 60_000,
      everyMs: 200,
    }).catch((error: Error) => Promise.reject(new Error(`${error.message}; the journal:\n${system.journal()}`)))

  /** Fields of the kernel's file about a process. */
  const readProcess = (pid: string) => {
    const status = system.must('cat', `/proc/${pid}/status`)
    const read = (name: string) => new RegExp(`^${name}:\\s*(\\S+)`, 'm').exec(status)?.[1]
    return { bounding: BigInt(`0x${read('CapBnd')}`), noNewPrivileges: read('NoNewPrivs'), seccomp: read('Seccomp') }
  }

  function expectConfined(unit: string, ...capabilities: readonly (keyof typeof bits)[]): void {
    // systemd cannot give what it does not have, in a container for example.
    const bounding = maskOf(capabilities) & readProcess('1').bounding
    const confined = { bounding, noNewPrivileges: '1', seccomp: '2' }
    expect(readProcess(system.property(unit, 'MainPID'))).toEqual(confined)
  }

  /** Kills the process: systemd starts it again, and connections succeed in the meantime. */
  async function survivesKill(unit: string): Promise<void> {
    const before = system.property(unit, 'MainPID')
    system.must('systemctl', 'kill', '--signal=KILL', unit)
    expect(answers()).toBe(true)
    const isNew = () => !['0', before].includes(system.property(unit, 'MainPID'))
    await until(`${unit} is started again`, isNew, { limitMs: 60_000 })
    await serves(unit)
    expect(system.property(unit, 'NRestarts')).toBe('1')
  }

  it('sluice.service serves /etc/sluice/manifests, confined, and leaves the rules when it stops', async () => {
    const unit = 'sluice.service'
    system.write('/etc/sluice/manifests/hello.yaml', manifests)
    system.must('systemctl', 'start', unit)
    await serves(unit)
    expectConfined(unit, 'DAC_OVERRIDE', 'NET_ADMIN', 'NET_RAW', 'SYS_RESOURCE')
    expect(system.journal()).not.toMatch(/EPERM|EACCES|EROFS|permission denied|read-only file system/i)
    await survivesKill(unit)
    system.must('systemctl', 'stop', unit)
    expect([system.property(unit, 'ActiveState'), system.property(unit, 'Result')]).toEqual(['inactive', 'success'])
    expect(answers()).toBe(true)
  })

  it('sluice-proxy.service takes over from it with the configuration of the package, confined further', async () => {
    const unit = 'sluice-proxy.service'
    system.must('systemctl', 'start', 'sluice.service')
    await serves('sluice.service')
    const kubeconfig = join(folder, 'kubeconfig')
    mkdirSync(join(folder, 'manifests'))
    writeFileSync(join(folder, 'manifests/hello.yaml'), manifests)
    const { file } = await bundleProgram(join(import.meta.dirname, 'api-server.worker.ts'))
    start(process.execPath, file, kubeconfig, 'systemd-test', join(folder, 'manifests'))
    await until('the API server runs', () => existsSync(kubeconfig), { limitMs: 60_000 })
    system.write('/etc/sluice/kubeconfig', readFileSync(kubeconfig, 'utf8'))
    const config = readFileSync(join(deployFolder, 'config.conf'), 'utf8')
    // Only the network namespace of the host may change the size of the table.
    system.write('/etc/sluice/config.conf', `${config}conntrack: { maxPerCore: 0 }\n`)
    system.must('systemctl', 'start', unit)
    expect(system.property('sluice.service', 'ActiveState')).toMatch(/^(inactive|deactivating)$/)
    await serves(unit)
    expectConfined(unit, 'NET_ADMIN', 'NET_RAW')
    await survivesKill(unit)
    system.must('systemctl', 'stop', unit)
    expect([system.property(unit, 'ActiveState'), system.property(unit, 'Result')]).toEqual(['inactive', 'success'])
    expect(answers()).toBe(true)
  })
})
