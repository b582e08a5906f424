// The iptables rules of ipvs mode in the kernel: written once, recognised, and every kind of change by others noticed. Without sets, which this kernel may lack.

import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { listPrograms } from '../../src/backend/iptables-kit/flavour.ts'
import { IptablesPrograms, type ProgramSet } from '../../src/backend/iptables-kit/programs.ts'
import { RuleTables } from '../../src/backend/ipvs/kernel/rule-tables.ts'
import { chains } from '../../src/backend/ipvs/rule-text.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { privateLock } from './iptables-holdings.ts'

privateLock()
const { signal } = new AbortController()
const text = (['nat', 'filter', 'mangle'] as const)
  .map((table) => {
    const declared = chains[table].map((chain) => `:${chain} - [0:0]`)
    const rules = chains[table].map((chain) => `-A ${chain} -s 127.0.0.0/8 -j RETURN`)
    return `${[`*${table}`, ...declared, ...rules, 'COMMIT'].join('\n')}\n`
  })
  .join('')
const entry = { id: 'rules', kind: 'rules', digest: 'ours', text } as const

let namespace: EnteredNamespace
beforeAll(() => {
  namespace = enterNamespace()
})
afterAll(() => namespace.leave())

const flavours = await listPrograms()

describe.each(flavours.map((programs) => [programs.flavour, programs] as const))('%s', (_, programs: ProgramSet) => {
  const iptables = (...args: string[]) => namespace.exec(`iptables${programs.suffix}`, ['-w', ...args])
  const saved = () => namespace.exec(`iptables${programs.suffix}-save`, []).replaceAll(/^#.*\n|\[\d+:\d+\]/gm, '')
  let tables: RuleTables
  let before = ''
  beforeEach(async () => {
    const tools = new IptablesPrograms({
      set: programs,
      family: 4,
      log: silentLogger,
      clock: systemClock,
      lockTimeoutMs: 10_000,
    })
    tables = new RuleTables(tools, 4)
    await tables.read(signal)
    await tables.write(entry, signal)
    before = saved()
    return () => tables.close()
  })

  /** Repairs as a sync does after a drift. */
  async function repair(): Promise<void> {
    const [held] = await tables.read(signal)
    expect(held?.digest).not.toBe('ours')
    await tables.write(entry, signal)
    expect(saved()).toBe(before)
    expect(await tables.describeDrift(signal)).toBe('')
    expect((await tables.read(signal))[0]?.digest).toBe('ours')
  }

  const changes = [
    ['a chain emptied', ['-t', 'nat', '-F', 'KUBE-SERVICES']],
    ['a rule added', ['-A', 'KUBE-FORWARD', '-j', 'DROP']],
    ['a jump removed', ['-t', 'mangle', '-F', 'OUTPUT']],
  ] as const

  it.each(changes)('notices %s, before the first check as well as later', async (_name, change) => {
    iptables(...change)
    expect(await tables.describeDrift(signal)).toContain('were changed')
    await repair()
    iptables(...change)
    expect(await tables.describeDrift(signal)).toContain('were changed')
    await repair()
  })

  it('notices a replaced rule, and ignores what others do with their own rules', async () => {
    expect(await tables.describeDrift(signal)).toBe('')
    iptables('-t', 'nat', '-N', 'OTHERS')
    iptables('-t', 'nat', '-A', 'OTHERS', '-j', 'ACCEPT')
    expect(await tables.describeDrift(signal)).toBe('')
    iptables('-t', 'nat', '-R', 'KUBE-SERVICES', '1', '-p', 'tcp', '--dport', '1', '-j', 'RETURN')
    expect(await tables.describeDrift(signal)).toContain('were changed')
    iptables('-t', 'nat', '-F', 'OTHERS')
    iptables('-t', 'nat', '-X', 'OTHERS')
    await repair()
  })
})
