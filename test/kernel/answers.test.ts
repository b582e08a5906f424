// Asks a running `sluice up` in each mode with the commands for people: their JSON is as documented, everything is compared with the kernel,
// and the commands that explain prints show what it names.

import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Finding } from '../../src/backend/finding.ts'
import type { KeptObject } from '../../src/backend/proxy-mode.ts'
import type { StatusAnswer } from '../../src/commands/answers/status-answer.ts'
import type { EntrySummary, Explanation } from '../../src/http/admin.ts'
import { findViolations } from '../support/json-schema.ts'
import { type PublishedProgram, publishProgram } from '../support/publish-program.ts'
import { until } from '../support/until.ts'

const root = join(import.meta.dirname, '../..')
const schema = JSON.parse(readFileSync(join(root, 'docs/schema/sluice-v1.schema.json'), 'utf8')) as object

let program: PublishedProgram
beforeAll(async () => {
  program = await publishProgram(join(root, 'test/commands/sluice.worker.ts'))
})
afterAll(() => program.remove())

const manifests = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  type: NodePort
  clusterIP: 10.96.0.50
  externalIPs: [198.18.0.7]
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.9.0.11]}, {addresses: [10.9.0.12]}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: shop}
spec:
  clusterIP: 10.96.0.51
  sessionAffinity: ClientIP
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky-1, namespace: shop, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.9.0.11]}, {addresses: [10.9.0.12]}]
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec: {clusterIP: 10.96.0.52, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {containers: [{name: client, image: client}]}
status: {podIP: 10.9.0.77}
`

/** A machine in a network namespace on which `sluice up` runs. */
class Machine {
  readonly name = `sluice-answers-${process.pid}-${Math.random().toString(36).slice(2, 6)}`
  readonly folder = mkdtempSync(join(tmpdir(), 'sluice-answers-'))
  /** Names the node, and so the socket of its proxy. */
  readonly node = `a${this.name.slice(-12)}`
  readonly socket = `/run/sluice/${this.node}.sock`
  readonly file = join(this.folder, 'manifests', 'shop.yaml')
  #up: ChildProcess | undefined
  #log = ''

  async start(mode: string): Promise<void> {
    execFileSync('mkdir', [join(this.folder, 'manifests')])
    writeFileSync(this.file, manifests)
    execFileSync('ip', ['netns', 'add', this.name])
    const commands = [
      'link set lo up',
      'link add eth0 type veth peer name eth1',
      'link set eth1 up',
      'link set eth0 up',
      'addr add 192.168.44.5/24 dev eth0',
      'route add default dev eth0',
    ]
    execFileSync('ip', ['-n', this.name, '-batch', '-'], { input: commands.join('\n') })
    execFileSync('ip', ['netns', 'exec', this.name, 'sysctl', '-qw', 'net.ipv4.ip_forward=1'])
    const flags = ['--mode', mode, '--node', this.node, '--nodeport-addresses', '0.0.0.0/0,localhost']
    const args = [...program.command, 'up', '--manifests', join(this.folder, 'manifests'), '--port', '0', ...flags]
    const child = spawn('ip', ['netns', 'exec', this.name, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
    this.#up = child
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (this.#log += chunk))
    await until('sluice up runs', () => this.#log.includes('Ctrl-C stops') || undefined, { limitMs: 60_000 }).catch(
      (error: Error) => Promise.reject(new Error(`${error.message}: ${this.#log}`)),
    )
  }

  /** Runs a command of sluice outside of the namespace. */
  run(...argv: readonly string[]): {
    readonly status: number | null
    readonly stdout: string
    readonly stderr: string
  } {
    const [node, script] = program.command
    return spawnSync(node, [script, ...argv, '--socket', this.socket], { encoding: 'utf8' })
  }

  /** Runs a command with -o json and checks the answer against the schema. */
  ask<T>(...argv: readonly string[]): T {
    const { stdout, stderr } = this.run(...argv, '-o', 'json')
    expect(stderr).toBe('')
    const answer = JSON.parse(stdout) as T
    expect(findViolations(schema as Record<string, unknown>, answer)).toEqual([])
    return answer
  }

  /** Runs a shell command in the namespace. */
  shell(command: string): string {
    const { status, stdout, stderr } = spawnSync('ip', ['netns', 'exec', this.name, 'bash', '-c', command], {
      encoding: 'utf8',
    })
    if (status !== 0) throw new Error(`${command} ended with ${status}: ${stderr}`)
    return stdout
  }

  async stop(): Promise<void> {
    const up = this.#up
    this.#up = undefined
    if (up === undefined || up.exitCode !== null) return
    const ended = new Promise((resolve) => up.once('exit', resolve))
    up.kill('SIGTERM')
    await ended
  }

  async remove(): Promise<void> {
    await this.stop()
    execFileSync('ip', ['netns', 'del', this.name])
    rmSync(this.folder, { recursive: true, force: true })
  }
}

/** Starts a process that looks like kube-proxy in a network namespace; '' is that of the test. */
function startNamesake(space: string): ChildProcess {
  if (space === '') return spawn('sleep', ['60'], { argv0: 'kube-proxy', stdio: 'ignore' })
  return spawn('ip', ['netns', 'exec', space, 'bash', '-c', 'exec -a kube-proxy sleep 60'], { stdio: 'ignore' })
}

/** What the output of the command must contain: the words of the name, or the address of a socket. */
const wordsShownBy = ({ name, command }: EntrySummary): readonly string[] =>
  command.startsWith('ss ')
    ? command.split(' ').slice(-1)
    : (name.match(/KUBE-\w+-\w+|(service|endpoint|external|affinity)-[\w./-]+|\d+\.\d+\.\d+\.\d+|shop\/\w+/g) ?? [])

describe.each(['nftables', 'iptables', 'userspace'])('the commands, asking a proxy in mode %s', (mode) => {
  const machine = new Machine()
  beforeAll(() => machine.start(mode), 90_000)
  afterAll(() => machine.remove())

  it('compares everything with the kernel, rules that services share included', () => {
    const { families, services } = machine.ask<StatusAnswer>('status')
    const checked = [...services, ...families.flatMap(({ base }) => base ?? [])]
    expect(checked.length).toBeGreaterThan(4)
    for (const one of checked) {
      expect(one.wrong).toEqual([])
      expect(one.inKernel).toMatchObject({ missing: 0, differs: 0, unchecked: 0 })
      expect((one.inKernel?.present ?? 0) + (one.inKernel?.byName ?? 0)).toBe(one.entries)
    }
    const text = machine.run('status')
    expect(text.status).toBe(0)
    expect(text.stdout).not.toContain('not checked')
    expect(text.stdout).toMatch(/shared rules (\d+)\/\1/)
  })

  it.each(['web', 'sticky', 'empty'])(
    'explains shop/%s from a pod by name, with commands that show each entry',
    (name) => {
      const argv = ['explain', `${name}.shop.svc`, '--from', 'pod/shop/client']
      const { items } = machine.ask<{ items: readonly Explanation[] }>(...argv)
      expect(items.length).toBeGreaterThan(0)
      const entries = items.flatMap((item) => item.entries)
      expect(entries.length).toBeGreaterThan(0)
      for (const entry of entries) {
        const { command, name: entryName, kernel } = entry
        expect([entryName, kernel]).toEqual([entryName, expect.stringMatching(/^(present|byName)$/)])
        const shown = machine.shell(command)
        expect(shown, command).not.toBe('')
        for (const word of wordsShownBy(entry)) expect(shown, command).toContain(word)
      }
      expect(new Set(items.map(({ packet }) => packet.from))).toEqual(new Set(['10.9.0.77']))
      // For people, the command also enters the namespace of the proxy: it works as printed.
      const printed = /^ {4}\$ (.*)$/m.exec(machine.run(...argv).stdout)?.[1] ?? ''
      expect(printed).toContain(`ip netns exec ${machine.name} `)
      expect(execFileSync('bash', ['-c', printed], { encoding: 'utf8' })).not.toBe('')
    },
  )

  it('selects services by label through the API server of the proxy', () => {
    const { services } = machine.ask<StatusAnswer>('status', '-l', 'app=web')
    expect(services.map(({ service }) => service)).toEqual(['shop/web'])
  })

  it('examines the network namespace of the proxy', () => {
    const { findings } = machine.ask<{ findings: readonly Finding[] }>('doctor')
    const find = (about: string) => findings.find((one) => one.about === about)
    expect(find('network namespace')).toMatchObject({ level: 'ok' })
    expect(find('sysctl net.ipv4.ip_forward')).toMatchObject({ level: 'ok', found: '1' })
    expect(find('proxies')?.found).toMatch(/^sluice \(pid \d+\)$/)
    const advice = findings.flatMap(({ todo }) => /^(ip netns exec \S+ sysctl -w [^,]+),/.exec(todo)?.[1] ?? [])
    // The advice works as printed.
    for (const command of advice) execFileSync('bash', ['-c', command])
    const again = machine.ask<{ findings: readonly Finding[] }>('doctor').findings
    expect(again.filter(({ about, level }) => about.startsWith('sysctl') && level !== 'ok')).toEqual([])
  })

  it('names another proxy that runs there, and no other than that', async () => {
    const [inside, outside] = [machine.name, ''].map((space) => startNamesake(space)) as [ChildProcess, ChildProcess]
    const find = () =>
      machine.ask<{ findings: readonly Finding[] }>('doctor').findings.find(({ about }) => about === 'proxies')
    try {
      const both = new RegExp(`^sluice \\(pid \\d+\\), kube-proxy \\(pid ${inside.pid}\\)$`)
      await until('it is found', () => both.test(find()?.found ?? '') || undefined, { limitMs: 20_000 })
      expect(find()).toMatchObject({ level: 'problem', meaning: expect.stringContaining('undo each other’s work') })
    } finally {
      for (const one of [inside, outside]) one.kill('SIGKILL')
    }
    await until('it is gone', () => find()?.level === 'ok' || undefined, { limitMs: 20_000 })
  })

  it('keeps a broken manifest visible until it is mended: in status and as a metric', async () => {
    writeFileSync(machine.file, `${manifests}---\nkind: [\n`)
    await until('status reports it', () => machine.run('status').status === 3 || undefined, { limitMs: 20_000 })
    expect(machine.run('status').stdout).toMatch(/! invalid manifest shop\.yaml:\d+: /)
    expect(machine.ask<StatusAnswer>('status').proxy?.invalidManifests[0]).toMatchObject({ file: 'shop.yaml' })
    expect(machine.shell('curl -s http://127.0.0.1:10249/metrics')).toMatch(/^sluice_invalid_manifests 1$/m)
    writeFileSync(machine.file, manifests)
    await until('status is well again', () => machine.run('status').status === 0 || undefined, { limitMs: 20_000 })
    expect(machine.shell('curl -s http://127.0.0.1:10249/metrics')).toMatch(/^sluice_invalid_manifests 0$/m)
  })

  it('watches: shows the answer again after a change, and ends at once on Ctrl-C', async () => {
    const [node, script] = program.command
    const watch = spawn(node, [script, 'status', '-n', 'shop', '--watch', '--socket', machine.socket])
    let text = ''
    watch.stdout.on('data', (chunk) => (text += chunk))
    const ended = new Promise<number | null>((resolve) => watch.once('exit', resolve))
    await until('it shows the services', () => /shop\/web +IPv4 +1 +2 /.test(text) || undefined, { limitMs: 20_000 })
    writeFileSync(machine.file, manifests.replace(', {addresses: [10.9.0.12]}]', ']'))
    await until('it shows the change', () => /shop\/web +IPv4 +1 +1 /.test(text) || undefined, { limitMs: 20_000 })
    watch.kill('SIGINT')
    expect(await ended).toBe(0)
    writeFileSync(machine.file, manifests)
  })

  it('has events on a pipe that are as documented', async () => {
    const [node, script] = program.command
    const top = spawn(node, [script, 'top', '-o', 'json', '--socket', machine.socket])
    let text = ''
    top.stdout.on('data', (chunk) => (text += chunk))
    let isShort = false
    await until(
      'there is an event',
      () => {
        isShort = !isShort
        writeFileSync(machine.file, isShort ? manifests.replace(', {addresses: [10.9.0.12]}]', ']') : manifests)
        return text.includes('\n') || undefined
      },
      { limitMs: 30_000, everyMs: 1_000 },
    )
    top.kill('SIGTERM')
    writeFileSync(machine.file, manifests)
    const event = JSON.parse(text.split('\n')[0] as string) as object
    expect(findViolations(schema as Record<string, unknown>, event)).toEqual([])
  })
})

describe('cleanup', () => {
  it('names what it keeps because kubelet uses it, with commands that remove it', async () => {
    const machine = new Machine()
    try {
      await machine.start('iptables')
      await machine.stop()
      const [node, script] = program.command
      const cleanup = (...argv: readonly string[]) => machine.shell([node, script, 'cleanup', ...argv].join(' '))
      const text = cleanup()
      expect(text).toContain('Nothing to remove.')
      expect(text).toContain('Kept: chain KUBE-FIREWALL in iptables (nft), table filter: kubelet uses it as well.')
      const { kept } = JSON.parse(cleanup('-o', 'json')) as { kept: readonly KeptObject[] }
      for (const command of kept.flatMap(({ commands }) => commands)) machine.shell(command)
      expect(cleanup()).toBe('Nothing to remove.\n')
    } finally {
      await machine.remove()
    }
  })
})

describe('doctor without privileges', () => {
  it('says that it could not look, and calls nothing well that it did not see', () => {
    const nobody = ['--reuid=65534', '--regid=65534', '--clear-groups', '--inh-caps=-all', '--bounding-set=-all']
    const proxy = startNamesake('')
    const { stdout, stderr } = spawnSync('setpriv', [...nobody, ...program.command, 'doctor', '-o', 'json'], {
      encoding: 'utf8',
      env: { ...process.env, HOME: '/' },
    })
    proxy.kill('SIGKILL')
    expect(stderr).toBe('')
    const { findings } = JSON.parse(stdout) as { findings: readonly Finding[] }
    const level = (about: string) => findings.find((one) => one.about === about)?.level
    for (const about of ['mode nftables', 'rules of proxies', 'firewalls']) {
      expect([about, level(about)]).toEqual([about, 'unknown'])
    }
    expect(level('iptables (nft)')).toBe('ok')
    expect(findings.find(({ about }) => about === 'firewalls')?.found).toContain('could not look')
    // A process of another user may or may not serve this network.
    expect(findings.find(({ about }) => about === 'proxies')).toMatchObject({
      level: 'unknown',
      found: expect.stringMatching(`not permitted to see whether .*kube-proxy \\(pid ${proxy.pid}\\)`),
    })
  })
})

describe('doctor without /proc', () => {
  it('says that it is not mounted, and takes nothing for absent that it could not see', () => {
    const script = 'umount -l /proc && exec "$0" "$@"'
    const args = ['--mount', '--propagation', 'private', 'sh', '-c', script, ...program.command]
    const { status, stdout } = spawnSync('unshare', [...args, 'doctor', '-o', 'json'], { encoding: 'utf8' })
    const { findings } = JSON.parse(stdout) as { findings: readonly Finding[] }
    expect(findings[0]).toMatchObject({ level: 'problem', about: '/proc', found: 'not mounted' })
    expect(findings.map(({ about }) => about)).not.toContain('proxies')
    expect(status).toBe(3)
  })
})
