// The shipped privileges: profiles are what the generator makes, their compiled filter decides as they say, and manifests grant no more.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import {
  formatPrivilegeDocs,
  type PrivilegedMode,
  privilegedModes,
  privilegesOf,
  profileOf,
} from '../../packaging/privileges.ts'
import { makeProfile, readRecord, recordedNames } from './make-profile.ts'
import {
  compileProfile,
  encodeProgram,
  type Instruction,
  JUMP_EQUAL,
  JUMP_NOT_LESS,
  killing,
  RETURN,
} from './seccomp-filter.ts'
import { syscallNumbers } from './syscall-numbers.ts'

const deploy = join(import.meta.dirname, '../../deploy')
const read = (...path: string[]): string => readFileSync(join(deploy, ...path), 'utf8')

const ALLOW = 0x7fff0000
const KILL = 0x80000000
const LOAD = 0x20

/** Runs a program as the kernel does, on the number and the arguments of a call. */
function decide(
  program: readonly Instruction[],
  number: number,
  args: readonly bigint[] = [],
  arch = 0xc000003e,
): number {
  const data = Buffer.alloc(64)
  data.writeUInt32LE(number, 0)
  data.writeUInt32LE(arch, 4)
  for (const [i, value] of args.entries()) data.writeBigUInt64LE(value, 16 + 8 * i)
  let value = 0
  for (let at = 0; ; at++) {
    const [code, ifTrue, ifFalse, operand] = program[at] as Instruction
    if (code === RETURN) return operand
    if (code === LOAD) value = data.readUInt32LE(operand)
    else if (code === JUMP_EQUAL) at += value === operand ? ifTrue : ifFalse
    else if (code === JUMP_NOT_LESS) at += value >= operand ? ifTrue : ifFalse
    else value = (value & operand) >>> 0
  }
}

const numberOf = (name: string): number => syscallNumbers.get(name) as number

describe.each(privilegedModes)('the seccomp profile of mode %s', (mode) => {
  const profile = profileOf(mode)
  const program = compileProfile(killing(profile))
  const startsPrograms = privilegesOf(mode).programs.length > 0

  it('is what the generator makes of the recorded calls', () => {
    expect(profile).toEqual(makeProfile(recordedNames(profile), startsPrograms))
    expect(recordedNames(profile).length).toBeGreaterThan(60)
  })

  it('allows what was recorded, and kills at all other calls', () => {
    for (const name of recordedNames(profile)) expect([name, decide(program, numberOf(name))]).toEqual([name, ALLOW])
    for (const name of [
      'ptrace',
      'mount',
      'unshare',
      'setns',
      'bpf',
      'init_module',
      'io_uring_enter',
      'keyctl',
      'reboot',
    ]) {
      expect([name, decide(program, numberOf(name))]).toEqual([name, KILL])
    }
    expect(decide(program, numberOf('read') | 0x40000000)).toBe(KILL)
    expect(decide(program, numberOf('read'), [], 0x40000003)).toBe(KILL)
  })

  it('allows threads, processes only where programs are started, and no namespaces', () => {
    const CLONE_THREAD = 0x10000n
    const CLONE_NEWUSER = 0x10000000n
    const SIGCHLD = 17n
    const clone = (flags: bigint) => decide(program, numberOf('clone'), [flags])
    expect(clone(CLONE_THREAD | 0x3d0f00n)).toBe(ALLOW)
    expect(clone(SIGCHLD)).toBe(startsPrograms ? ALLOW : KILL)
    expect(clone(SIGCHLD | CLONE_NEWUSER)).toBe(KILL)
    expect(decide(program, numberOf('vfork'))).toBe(startsPrograms ? ALLOW : KILL)
    expect(decide(program, numberOf('clone3'))).toBe(0x50026)
  })

  it('allows sockets of four families', () => {
    const families = Array.from({ length: 46 }, (_, family) => family)
    const open = families.filter((family) => decide(program, numberOf('socket'), [BigInt(family), 3n, 0n]) === ALLOW)
    expect(open).toEqual([1, 2, 10, 16])
    expect(decide(program, numberOf('socket'), [2n | (1n << 32n)])).toBe(KILL)
  })
})

it('a compiled program is an array of struct sock_filter', () => {
  const bytes = encodeProgram([
    [0x15, 1, 2, 0xc000003e],
    [0x06, 0, 0, 0x80000000],
  ])
  expect(Buffer.from(bytes).toString('hex')).toBe('150001023e0000c00600000000000080')
})

it('a record of strace yields calls and programs, those of the first program left out', () => {
  const record = [
    '10 execve("/usr/bin/node", ["node"], 0x7f /* 1 var */) = 0',
    '10 prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0x1) = 0',
    '10 execve("/usr/bin/sluice", ["sluice"], 0x7f /* 1 var */ <unfinished ...>',
    '10 <... execve resumed>) = 0',
    '11 execve("/usr/sbin/absent", ["absent"], 0x7f) = -1 ENOENT (No such file or directory)',
    '11 futex(0x1, FUTEX_WAIT, 0, NULL <unfinished ...>',
    '11 +++ exited with 0 +++',
  ]
  const { calls, programs } = readRecord(record.join('\n'))
  expect([...calls]).toEqual(['execve', 'futex'])
  expect(programs).toEqual(['/usr/bin/sluice'])
})

it('docs/privileges.md is current; `npm run docs` writes it', async () => {
  await expect(formatPrivilegeDocs()).toMatchFileSnapshot('../../docs/privileges.md')
})

describe('manifests grant what the table says', () => {
  const all = (mode: PrivilegedMode): readonly string[] => {
    const { capabilities, legacyFlavour } = privilegesOf(mode)
    return legacyFlavour?.capabilities ?? capabilities
  }

  it.each(privilegedModes)('kustomize, %s', (mode) => {
    const base = parse(read('kustomize/base/daemonset.yaml')) as DaemonSet
    const container = base.spec.template.spec.containers[0]
    expect(container?.securityContext).toEqual({
      privileged: false,
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      runAsUser: 0,
      capabilities: { drop: ['ALL'], add: ['NET_ADMIN'] },
    })
    const overlay = read('kustomize/overlays', mode, 'kustomization.yaml')
    const added = [...overlay.matchAll(/capabilities\/add\/-, value: (\w+)/g)].map(([, name]) => name)
    expect(['NET_ADMIN', ...added]).toEqual(all(mode))
    const mounted = [...(container?.volumeMounts ?? []).filter(({ readOnly }) => readOnly !== true)].map(
      ({ mountPath }) => mountPath,
    )
    const more = [...overlay.matchAll(/mountPath: ([^ ,}]+)/g)].map(([, path]) => path)
    expect([...mounted, ...more]).toEqual(privilegesOf(mode).writable.map((path) => path.replace(/\/$/, '')))
  })

  it('the chart', () => {
    const helpers = read('chart/sluice/templates/_helpers.tpl')
    const [nftables, others] = [...helpers.matchAll(/"\[(NET_ADMIN[^\]]*)\]"/g)].map(([, list]) => list?.split(', '))
    expect(nftables).toEqual(all('nftables'))
    for (const mode of ['iptables', 'ipvs', 'userspace'] as const) expect(others).toEqual(all(mode))
    for (const line of ['allowPrivilegeEscalation: false', 'readOnlyRootFilesystem: true', 'drop: [ALL]']) {
      expect(helpers).toContain(line)
    }
  })

  it('the static pod', () => {
    const pod = parse(read('static-pod.yaml')) as DaemonSet['spec']['template']
    expect(pod.spec.containers.map(({ securityContext }) => securityContext)).toEqual([
      {
        privileged: false,
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        runAsUser: 0,
        capabilities: { drop: ['ALL'], add: all('iptables') },
      },
    ])
  })

  it('the systemd unit', () => {
    const unit = read('systemd/sluice-proxy.service')
    const bounding = /^CapabilityBoundingSet=(.*)$/m.exec(unit)?.[1]?.split(' ')
    expect(bounding).toEqual(all('iptables').map((name) => `CAP_${name}`))
    expect(unit).toMatch(/^NoNewPrivileges=true$/m)
    expect(unit).toMatch(/^ProtectSystem=strict$/m)
  })
})

interface DaemonSet {
  readonly spec: {
    readonly template: {
      readonly spec: {
        readonly containers: readonly {
          readonly securityContext: unknown
          readonly volumeMounts: readonly { readonly mountPath: string; readonly readOnly?: boolean }[]
        }[]
      }
    }
  }
}
