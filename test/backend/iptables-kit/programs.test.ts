// Which programs are used, and how they are run: by scripts that play iptables.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { leftovers } from '../../../src/backend/iptables/cleanup.ts'
import { findPrograms } from '../../../src/backend/iptables-kit/flavour.ts'
import { atLeast, IptablesPrograms } from '../../../src/backend/iptables-kit/programs.ts'
import { createLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'

let folder: string
let path: string | undefined
let said: string
const log = createLogger({ format: 'text', verbosity: 0, write: (line) => (said += line) })

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-tools-'))
  path = process.env.PATH
  process.env.PATH = folder
  said = ''
})

afterEach(() => {
  process.env.PATH = path
  rmSync(folder, { recursive: true })
})

const script = (name: string, body: string) =>
  writeFileSync(join(folder, name), `#!/bin/sh\n${body}\n`, { mode: 0o755 })

/** A flavour whose tables hold this text; mangle only if asked for. */
function flavour(suffix: string, version: string, all: string, mangle = ''): void {
  for (const name of ['iptables', 'ip6tables']) {
    script(`${name}${suffix}`, `echo '${version}'`)
    script(`${name}${suffix}-save`, `if [ "$2" = mangle ]; then echo '${mangle}'; else echo '${all}'; fi`)
  }
}

const nft = 'iptables v1.8.9 (nf_tables)'
const legacy = 'iptables v1.8.9 (legacy)'
const rules = '-A INPUT -j A\n-A INPUT -j B'

describe('the flavour', () => {
  it('is what there is', async () => {
    await expect(findPrograms(log)).rejects.toMatchObject({ code: 'iptables-missing' })
    flavour('', 'iptables v1.6.1', '')
    expect(await findPrograms(log)).toEqual({ flavour: 'legacy', suffix: '', version: [1, 6, 1] })
    flavour('-nft', nft, '')
    expect(await findPrograms(log)).toEqual({ flavour: 'nft', suffix: '-nft', version: [1, 8, 9] })
  })

  it('is what plain iptables is, where nothing tells', async () => {
    flavour('-nft', nft, '')
    flavour('-legacy', legacy, '')
    flavour('', legacy, '')
    expect((await findPrograms(log)).flavour).toBe('legacy')
    flavour('', nft, '')
    expect((await findPrograms(log)).flavour).toBe('nft')
    expect(said).toBe('')
  })

  it('is that of kubelet, however many rules the other holds', async () => {
    flavour('', legacy, '')
    flavour('-legacy', legacy, rules)
    flavour('-nft', nft, '', ':KUBE-IPTABLES-HINT - [0:0]')
    expect((await findPrograms(log)).flavour).toBe('nft')
    expect(said).toContain('Both flavours of iptables hold rules')
    said = ''
    flavour('-nft', nft, '', ':KUBE-KUBELET-CANARY - [0:0]')
    flavour('-legacy', legacy, '')
    expect((await findPrograms(log)).flavour).toBe('nft')
    expect(said).toBe('')
  })

  it('is that of more rules, where kubelet is silent', async () => {
    flavour('', legacy, '')
    flavour('-legacy', legacy, '-A INPUT -j A')
    flavour('-nft', nft, rules)
    expect((await findPrograms(log)).flavour).toBe('nft')
    expect(said).toContain('Both flavours')
  })
})

describe('running', () => {
  const tools = (version: [number, number, number], lockTimeoutMs = 0) =>
    new IptablesPrograms({
      set: { flavour: 'legacy', suffix: '', version },
      family: 4,
      log,
      clock: systemClock,
      lockTimeoutMs,
    })

  it('waits for the lock as far as the version can', async () => {
    const out = join(folder, 'args')
    script('iptables', `echo "$@" >> ${out}`)
    script('iptables-restore', `echo "restore $@" >> ${out}`)
    process.env.PATH = `${folder}:${path}`
    await tools([1, 8, 9]).succeeds(['-S', 'X'])
    await tools([1, 4, 21]).succeeds(['-S', 'X'])
    await tools([1, 8, 9]).restore('*nat\nCOMMIT\n')
    await tools([1, 6, 1]).restore('*nat\nCOMMIT\n')
    expect(readFileSync(out, 'utf8').trim().split('\n')).toEqual([
      '-w 5 -S X',
      '-S X',
      'restore -w 5 --noflush --counters',
      'restore --noflush --counters',
    ])
  })

  const locked = 'echo "Another app is currently holding the xtables lock. Stopped waiting after 5s." >&2; exit 4'

  it('says that the lock is held', async () => {
    script('iptables-restore', locked)
    process.env.PATH = `${folder}:${path}`
    await expect(tools([1, 8, 9]).restore('')).rejects.toMatchObject({ code: 'iptables-locked' })
  })

  it('goes on trying until patience ends, and tells', async () => {
    const file = join(folder, 'tried')
    script('iptables-restore', `if [ -e ${file} ]; then exit 0; fi; touch ${file}; ${locked}`)
    process.env.PATH = `${folder}:${path}`
    const patient = tools([1, 8, 9], 60_000)
    await patient.restore('*filter\nCOMMIT\n*nat\nCOMMIT\n')
    expect(said).toContain('Waiting for the xtables lock')
    expect(patient.commits).toBe(2)
  })

  it('compares versions part by part', () => {
    expect(atLeast([1, 6, 2], [1, 6, 2])).toBe(true)
    expect(atLeast([1, 10, 0], [1, 6, 2])).toBe(true)
    expect(atLeast([1, 6, 1], [1, 6, 2])).toBe(false)
    expect(atLeast([2, 0, 0], [1, 6, 2])).toBe(true)
  })
})

describe('leftovers', () => {
  it('are what a proxy makes, and nothing of kubelet or others', () => {
    const saved = `*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-FAKE - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:CNI-FORWARD - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m comment --comment "my own" -j KUBE-FORWARD
COMMIT
`
    expect(leftovers('filter', saved)).toEqual({
      jumps: ['-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD'],
      chains: ['KUBE-FORWARD', 'KUBE-SERVICES'],
    })
    const nat = ':KUBE-SVC-X - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-MARK-DROP - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\n'
    expect(leftovers('nat', nat).chains).toEqual(['KUBE-SVC-X', 'KUBE-MARK-MASQ', 'KUBE-PROXY-CANARY'])
    expect(leftovers('mangle', ':KUBE-PROXY-CANARY - [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\n').chains).toEqual([
      'KUBE-PROXY-CANARY',
    ])
  })
})
