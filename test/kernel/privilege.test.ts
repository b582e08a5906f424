// Each mode with exactly the privileges that deploy/privileges.json and deploy/seccomp name: another user than root, no new privileges,
// few capabilities, a read-only file system, and a filter that kills the process at any other system call.

import { chmodSync, chownSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import {
  identityOf,
  type PrivilegedMode,
  privilegesOf,
  profileOf,
  profilePath,
  type SeccompProfile,
} from '../../packaging/privileges.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { ConfinedProxy } from '../privilege/confined-proxy.ts'
import { exercise } from '../privilege/exercise.ts'
import { makeProfile, readRecord, recordedNames } from '../privilege/make-profile.ts'
import { serveName } from '../privilege/name-server.ts'
import { copyBundle, copyExecutable, hasExecutable, type ProgramCopy } from '../privilege/program-copies.ts'
import { apiPort, initCommand, proxyFlags, writeSettings } from '../privilege/proxy-flags.ts'
import { killing } from '../privilege/seccomp-filter.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import type { Flavour } from './iptables-holdings.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { extras, web } from './web-service.ts'

/** Records what the modes call, and adds it to the profiles, instead of testing them. */
const updates = process.env.UPDATE_SECCOMP === '1'
if (!hasExecutable) console.log('SKIPPED the single executable: npm run package makes it')

interface Case {
  readonly mode: PrivilegedMode
  readonly flavour?: Flavour
}
const cases: readonly Case[] = [
  { mode: 'nftables' },
  { mode: 'iptables', flavour: 'nft' },
  { mode: 'iptables', flavour: 'legacy' },
  { mode: 'userspace', flavour: 'nft' },
  { mode: 'userspace', flavour: 'legacy' },
]

let bundle: ProgramCopy
let executable: ProgramCopy | undefined
beforeAll(async () => {
  bundle = await copyBundle()
  executable = hasExecutable ? copyExecutable() : undefined
})
afterAll(() => {
  bundle?.remove()
  executable?.remove()
})

let network: NodeNetwork
let api: WatchedApi
let names: { close(): void }
let folder: string
let record: string
let proxy: ConfinedProxy | undefined

beforeEach(async () => {
  network = await NodeNetwork.create()
  api = await WatchedApi.listen(network.node, apiPort)
  names = await serveName(network.node, '127.0.0.1')
  const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
  api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status } as Item)
  api.put(...([...web().put, ...extras(100).put] as unknown as Item[]))
  folder = mkdtempSync(join(tmpdir(), 'sluice-record-'))
  chmodSync(folder, 0o755)
  record = join(folder, 'record')
  writeFileSync(record, '')
})

afterEach(async () => {
  await proxy?.close()
  proxy = undefined
  names?.close()
  api?.close()
  await network?.close()
  rmSync(folder, { recursive: true, force: true })
})

async function startConfined(
  copy: ProgramCopy,
  { mode, flavour }: Case,
  profile?: SeccompProfile,
  identity = identityOf(mode, flavour),
): Promise<ConfinedProxy> {
  chownSync(record, identity.uid, identity.uid)
  if (flavour !== undefined) await network.useFlavour(flavour)
  const settings = writeSettings(folder)
  await network.run(initCommand(copy.command, mode, [settings]))
  proxy = await ConfinedProxy.start({
    node: network.node,
    program: copy.command,
    flags: [...proxyFlags(mode), settings],
    ...identity,
    writable: privilegesOf(mode).writable,
    record: { file: record, calls: profile === undefined ? 'all' : 'execve' },
    resolver: '127.0.0.1',
    ...(profile !== undefined && { profile }),
  })
  return proxy
}

async function run(copy: ProgramCopy, one: Case): Promise<ReturnType<typeof readRecord>> {
  const { mode, flavour } = one
  const confined = await startConfined(copy, one, updates ? undefined : killing(profileOf(mode)))
  await exercise(confined, {
    ...{ api, nodeIp, pods: podIps, podPort: 8080, run: (command) => network.run(command) },
    isServed: async (ip, port) => (podIps as readonly string[]).includes(await network.ask(ip, port)),
    damage: mode === 'nftables' ? 'nft delete table ip kube-proxy || true' : `iptables-${flavour} -t nat -F`,
  })
  expect(await confined.stop()).toEqual([null, 'SIGTERM'])
  return readRecord(readFileSync(record, 'utf8'))
}

function update(mode: PrivilegedMode, calls: ReadonlySet<string>): void {
  const before = recordedNames(profileOf(mode))
  const profile = makeProfile([...before, ...calls], privilegesOf(mode).programs.length > 0)
  writeFileSync(profilePath(mode), `${JSON.stringify(profile, undefined, 2)}\n`)
}

const titled = cases.map((one) => [`${one.mode}${one.flavour === undefined ? '' : ` (${one.flavour})`}`, one] as const)
const executed = new Map<PrivilegedMode, Set<string>>()

async function expectServes(copy: ProgramCopy, one: Case): Promise<void> {
  const { calls, programs } = await run(copy, one)
  const own = new Set(programs.slice(1).map((path) => basename(path)))
  if (updates) return update(one.mode, calls)
  expect(programs.slice(1).filter((path) => !/^\/(usr\/)?(local\/)?s?bin\/[^/]+$/.test(path))).toEqual([])
  expect(privilegesOf(one.mode).programs).toEqual(expect.arrayContaining([...own]))
  executed.set(one.mode, new Set([...(executed.get(one.mode) ?? []), ...own]))
}

describe('with its privileges alone', () => {
  it.each(titled)('mode %s does everything, run by Node', (_, one) => expectServes(bundle, one))
  it.runIf(hasExecutable).each(titled)('mode %s does everything, as a single executable', (_, one) =>
    expectServes(executable as ProgramCopy, one),
  )
  it.skipIf(updates)('no mode may start a program that it never starts', () => {
    for (const [mode, programs] of executed) expect([...programs].sort()).toEqual(privilegesOf(mode).programs)
  })
})

describe.skipIf(updates)('privileges that are missing are missed', () => {
  const nftables: Case = { mode: 'nftables' }

  /** Runs a program to its end with the privileges of nftables mode. Resolves with the signal that ended it, and its output. */
  async function confined(command: readonly string[], profile?: SeccompProfile): Promise<readonly [string, string]> {
    proxy = await ConfinedProxy.start({
      ...{ node: network.node, program: command, flags: [], ...identityOf('nftables') },
      writable: privilegesOf('nftables').writable,
      ...(profile !== undefined && { profile }),
    })
    const [code, signal] = await proxy.exited
    await proxy.logged
    return [signal ?? String(code), proxy.log]
  }

  it('the user, capabilities and mounts are as they should be', async () => {
    const script =
      'id -u; cat /proc/self/status; touch /run/sluice/a; for path in /tmp/a /etc/a /run/a; do touch $path; done'
    const [, output] = await confined(['/bin/sh', '-c', `(${script}) >&2`])
    expect(output).toMatch(/^65534$/m)
    expect(output).toMatch(/^NoNewPrivs:\t1$/m)
    for (const set of ['Prm', 'Eff', 'Bnd', 'Amb', 'Inh'])
      expect(output).toMatch(new RegExp(`^Cap${set}:\\t0+1000$`, 'm'))
    expect([...output.matchAll(/'(\S+)': Read-only file system/g)].map(([, path]) => path)).toEqual([
      '/tmp/a',
      '/etc/a',
      '/run/a',
    ])
    expect(output).not.toContain("'/run/sluice/a'")
  })

  it('the filter of nftables mode ends a process that starts a program', async () => {
    const script = "require('child_process').spawnSync('/bin/true')"
    const command = [bundle.command[0] as string, '-e', script]
    expect((await confined(command, killing(profileOf('nftables'))))[0]).toBe('SIGSYS')
    expect((await confined(command, killing(profileOf('iptables'))))[0]).toBe('0')
  })

  it.each(['sendto', 'recvfrom', 'epoll_pwait', 'sendmmsg', 'listen'])(
    'a filter without %s ends the proxy',
    async (name) => {
      const whole = killing(profileOf('nftables'))
      const syscalls = whole.syscalls.map((rule) => ({ ...rule, names: rule.names.filter((one) => one !== name) }))
      const one = await startConfined(bundle, nftables, { ...whole, syscalls })
      expect(await one.exited).toEqual([null, 'SIGSYS'])
    },
  )

  it.each<Case>([nftables, { mode: 'iptables', flavour: 'nft' }])(
    'without its capability, a proxy in $mode does not serve, and says why',
    async (one) => {
      const { uid } = identityOf(one.mode, one.flavour)
      const started = await startConfined(bundle, one, killing(profileOf(one.mode)), { uid, capabilities: [] })
      await until('the log names the cause', () => /Permission denied|CAP_NET_ADMIN/i.test(started.log))
      expect(await network.ask(clusterIp, 80, 500)).not.toMatch(/^10\.180/)
    },
  )

  it('the profile as it is shipped keeps nftables mode from removing chains of iptables mode, and from nothing else', async () => {
    await network.run('iptables-nft -t nat -N KUBE-SERVICES')
    const one = await startConfined(bundle, nftables, profileOf('nftables'))
    await one.waitUntilSynced()
    expect(podIps).toContain(await network.ask())
    await until('the log names the cause', () => one.log.includes('iptables-nft cannot be started'))
    expect(await one.stop()).toEqual([null, 'SIGTERM'])
  })

  it('a proxy that is not root says that it cannot see legacy tables', async () => {
    const one: Case = { mode: 'iptables', flavour: 'nft' }
    const started = await startConfined(bundle, one, killing(profileOf('iptables')))
    await until('the proxy warns', () => started.log.includes('Cannot see whether legacy iptables holds rules'))
  })
})
