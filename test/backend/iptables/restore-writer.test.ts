// What is written when, and what happens when the programs refuse a restore: which service is refused, and which are written.

import { describe, expect, it } from 'vitest'
import { ExpectedUses } from '../../../src/backend/iptables/drift.ts'
import { createStray } from '../../../src/backend/iptables/entries.ts'
import { adapt } from '../../../src/backend/iptables/features.ts'
import { composeJumps } from '../../../src/backend/iptables/jumps.ts'
import { jumps } from '../../../src/backend/iptables-kit/chains.ts'
import { suspectLines } from '../../../src/backend/iptables-kit/restore-text.ts'
import { ProxyError } from '../../../src/lib/errors.ts'
import { ExecError } from '../../../src/sys/process/exec.ts'
import { endpoint, service, slice, tcp } from '../../support/builders.ts'
import { diffAtOnce, resetAtOnce } from '../../support/ledger-at-once.ts'
import { allFeatures, rulesOf, WriterHarness } from './writer-harness.ts'

const put = (harness: WriterHarness, n: number, ...ips: string[]) =>
  harness.put(
    service({ key: `ns/s${n}`, clusterIps: [`172.30.0.${n}`], type: 'NodePort', ports: [tcp(80, 'p80', 3000 + n)] }),
    slice(
      ips.map((ip) => endpoint(ip)),
      { key: `ns/s${n}-a`, service: `ns/s${n}` },
    ),
  )

const failure = (stderr: string) =>
  new ExecError({ program: 'iptables-restore', args: [], what: 'ended with exit code 1', exitCode: 1, stderr })

/** Fails as the program does, with a message about the first line that matches. */
const refuse = (pattern: RegExp, words: (line: number, lines: number) => string) => (text: string) => {
  const lines = text.split('\n')
  const at = lines.findIndex((line) => pattern.test(line))
  if (at >= 0) throw failure(words(at + 1, lines.length - 1))
}

const styles: readonly (readonly [string, (line: number, lines: number) => string])[] = [
  ['the nft flavour', (line) => `line ${line}: RULE_APPEND failed (No such file or directory): rule in chain X`],
  ['the nft flavour, a line late', (line) => `Chain 'X' does not exist\nError occurred at line: ${line + 1}`],
  ['a parser', (line) => `Bad argument\nError occurred at line: ${line}`],
  ['the legacy flavour, at COMMIT', (_, lines) => `iptables-restore: line ${lines} failed`],
  ['a program that prints nothing', () => ''],
]

describe('writing', () => {
  it('writes only the chains that changed if endpoints of a service come and go', async () => {
    const harness = new WriterHarness()
    put(harness, 1, '10.0.0.1')
    put(harness, 2, '10.0.0.2', '10.0.0.3')
    await harness.sync()
    put(harness, 2, '10.0.0.2', '10.0.0.4')
    const { rules: counts } = await harness.sync()
    expect(harness.texts).toHaveLength(2)
    const { text } = harness
    expect(text).toMatch(
      /^\*nat\n:KUBE-SVC-(\S+) .*\n:KUBE-SEP-(\S+) .*\n:KUBE-SEP-(\S+) .*\n(?:-A .*\n)+-X KUBE-SEP-\3\nCOMMIT\n$/,
    )
    expect(text).not.toContain('10.0.0.3')
    expect(counts).toEqual({ filter: 0, nat: text.match(/^-/gm)?.length })
  })

  it.each([
    ['a service comes', (harness: WriterHarness) => put(harness, 3, '10.0.0.3')],
    ['a service goes', (harness: WriterHarness) => harness.drop('ns/s2')],
    ['a service loses its last endpoint', (harness: WriterHarness) => put(harness, 2)],
  ])('writes of unchanged services only their rules in the shared chains if %s', async (_, change) => {
    const harness = new WriterHarness()
    put(harness, 1, '10.0.0.1')
    put(harness, 2, '10.0.0.2')
    await harness.sync()
    change(harness)
    const { rules: counts } = await harness.sync()
    expect(harness.texts).toHaveLength(2)
    expect(harness.text).toContain('"ns/s1:p80 cluster IP"')
    expect(harness.text).not.toMatch(/^:KUBE-SEP-.*\n(?:.*\n)*.*10\.0\.0\.1/m)
    expect(counts).toEqual({
      filter: harness.text.slice(0, harness.text.indexOf('*nat')).match(/^-/gm)?.length,
      nat: harness.text.slice(harness.text.indexOf('*nat')).match(/^-/gm)?.length,
    })
  })

  it('forgets what is not wanted when everything is written', async () => {
    const harness = new WriterHarness()
    for (const n of [1, 2, 3]) put(harness, n, `10.0.0.${n}`)
    await harness.sync()
    // There are as many as before, so counting alone does not show the difference.
    harness.drop('ns/s2')
    put(harness, 4, '10.0.0.4')
    resetAtOnce(harness.ledger, [])
    await harness.sync({ everything: true })
    expect(harness.text).not.toContain('ns/s2')
    expect([...harness.written.entries()].some(({ service: of }) => of === 'ns/s2')).toBe(false)
    put(harness, 5, '10.0.0.5')
    await harness.sync()
    expect(harness.text).toContain('"ns/s3:p80 cluster IP"')
  })

  const ownChains = (text: string) =>
    [...text.matchAll(/^:(KUBE-(?:SVC|EXT|SEP)-\S+)/gm)].map((match) => match[1] as string)

  it('deletes chains of what is forgotten when everything is written', async () => {
    const harness = new WriterHarness()
    for (const n of [1, 2]) put(harness, n, `10.0.0.${n}`)
    await harness.sync()
    const all = ownChains(harness.text)
    harness.drop('ns/s2')
    put(harness, 1, '10.0.0.9')
    resetAtOnce(harness.ledger, [])
    await harness.sync({ everything: true })
    const gone = harness.text.match(/^-X \S+/gm)?.map((line) => line.slice(3)) ?? []
    // All of the second service, and the old endpoint of the first.
    expect(gone).toHaveLength(4)
    for (const chain of gone) expect(all).toContain(chain)
    expect(ownChains(harness.text)).toHaveLength(3 + 4)
  })

  it('deletes chains that an earlier process left, but none that is wanted', async () => {
    const harness = new WriterHarness()
    put(harness, 1, '10.0.0.1')
    await harness.sync()
    const wanted = ownChains(harness.text)
    const successor = new WriterHarness()
    put(successor, 1, '10.0.0.1')
    resetAtOnce(successor.ledger, [...wanted, 'KUBE-SVC-LEFT', 'KUBE-SEP-LEFT'].map(createStray))
    await successor.sync({ everything: true })
    expect(successor.text.match(/^-X .*/gm)).toEqual(['-X KUBE-SVC-LEFT', '-X KUBE-SEP-LEFT'])
    expect(ownChains(successor.text)).toEqual([...wanted, 'KUBE-SVC-LEFT', 'KUBE-SEP-LEFT'])
    expect(diffAtOnce(successor.ledger)).toEqual({ put: [], drop: [] })
  })

  it('writes only the chains of a service port that changed', async () => {
    const harness = new WriterHarness()
    put(harness, 1, '10.0.0.1', '10.0.0.2', '10.0.0.3')
    put(harness, 2, '10.0.0.1')
    await harness.sync()
    put(harness, 1, '10.0.0.1', '10.0.0.2', '10.0.0.4')
    await harness.sync()
    // The chain of the service, of the new endpoint, and of the old endpoint, which is deleted.
    expect(ownChains(harness.text).map((chain) => chain.slice(0, 8))).toEqual(['KUBE-SVC', 'KUBE-SEP', 'KUBE-SEP'])
    expect(harness.text.match(/^-X /gm)).toHaveLength(1)
    expect(harness.text).toContain('10.0.0.4:80')
    expect(harness.text).not.toContain('--to-destination 10.0.0.1:80')
  })

  it('does not depend on the order in which services were added', async () => {
    const orders = [
      [1, 2, 3],
      [3, 1, 2],
    ]
    const texts = await Promise.all(
      orders.map(async (order) => {
        const harness = new WriterHarness()
        for (const n of order) put(harness, n, `10.0.0.${n}`)
        await harness.sync()
        return harness.text
      }),
    )
    expect(texts[0]).toBe(texts[1])
  })

  it('empties and deletes the chains of a service that is gone, in the same restore', async () => {
    const harness = new WriterHarness()
    put(harness, 1, '10.0.0.1')
    await harness.sync()
    const own = [...harness.text.matchAll(/^:(KUBE-(?:SVC|EXT|SEP)-\S+)/gm)].map((match) => match[1] as string)
    harness.drop('ns/s1')
    await harness.sync()
    expect(own).toHaveLength(3)
    for (const chain of own) {
      expect(harness.text).toContain(`:${chain} - [0:0]\n`)
      expect(harness.text).toContain(`-X ${chain}\n`)
    }
    expect(harness.text).not.toContain('ns/s1')
    expect(rulesOf(harness.text, 'KUBE-SERVICES')).toHaveLength(1)
    expect(harness.written.ruleCount('nat')).toBe(5)
  })

  it('keeps count of rules and uses through any history', async () => {
    const harness = new WriterHarness()
    for (let n = 1; n < 6; n++) put(harness, n, `10.0.0.${n}`, '10.0.1.1')
    await harness.sync()
    put(harness, 2)
    harness.drop('ns/s3')
    await harness.sync()
    const fresh = new WriterHarness()
    for (const n of [1, 4, 5]) put(fresh, n, `10.0.0.${n}`, '10.0.1.1')
    put(fresh, 2)
    await fresh.sync()
    const usesOf = ({ written }: WriterHarness) => [...new ExpectedUses(written).uses()].sort()
    expect(usesOf(harness)).toEqual(usesOf(fresh))
    expect(harness.written.ruleCount('nat')).toBe(fresh.text.slice(fresh.text.indexOf('*nat')).match(/^-A/gm)?.length)
    expect(harness.written.endpoints).toBe(6)
  })
})

describe('very many chains', () => {
  const rules = (text: string) => text.split('\n').filter((line) => line.startsWith('-A'))

  it('are written in several restores, before anything jumps to them, and deleted when nothing jumps to them', async () => {
    const whole = new WriterHarness()
    const parts = new WriterHarness(undefined, { chainsPerRestore: 7 })
    for (const harness of [whole, parts]) for (let n = 1; n < 8; n++) put(harness, n, `10.0.0.${n}`)
    await whole.sync()
    const { rules: counts } = await parts.sync()
    // A service has three chains, so two services fit into one restore.
    expect(parts.texts).toHaveLength(5)
    expect(new Set(parts.texts.flatMap(rules))).toEqual(new Set(rules(whole.text)))
    expect(counts.nat).toBe(parts.texts.join('').match(/^-A KUBE-(?!F)(?!EXTERNAL)/gm)?.length)
    for (const text of parts.texts.slice(0, 4)) expect(text).not.toContain('KUBE-SERVICES')
    for (let n = 1; n < 8; n++) parts.drop(`ns/s${n}`)
    await parts.sync()
    const [shared, ...deletions] = parts.texts.slice(5) as [string, ...string[]]
    expect(shared).not.toMatch(/^-X/m)
    expect(deletions).toHaveLength(3)
    const order = deletions.join('').match(/^-X KUBE-\w+/gm) ?? []
    expect(order).toHaveLength(21)
    expect(order.slice(-7)).toEqual(Array(7).fill('-X KUBE-SEP'))
  })

  it('of one service are written in several restores, too: the chains of endpoints before those that jump to them', async () => {
    const whole = new WriterHarness()
    const parts = new WriterHarness(undefined, { chainsPerRestore: 7 })
    const ips = (length: number) => Array.from({ length }, (_, i) => `10.0.0.${i + 1}`)
    for (const harness of [whole, parts]) put(harness, 1, ...ips(20))
    await whole.sync()
    await parts.sync()
    expect(parts.texts).toHaveLength(5)
    expect(new Set(parts.texts.flatMap(rules))).toEqual(new Set(rules(whole.text)))
    const made = new Set<string>()
    for (const text of parts.texts) {
      for (const [, chain = ''] of text.matchAll(/^:(\S+)/gm)) made.add(chain)
      for (const [, chain = ''] of text.matchAll(/-j (KUBE-SEP-\S+)/g)) expect(made).toContain(chain)
    }
    for (const text of parts.texts.slice(0, 3)) expect(text.match(/^:KUBE-SEP/gm)?.length).toBeLessThanOrEqual(7)
    put(parts, 1, ...ips(40))
    await parts.sync()
    expect(parts.texts.slice(5).flatMap((text) => text.match(/^:KUBE-SEP\S+/gm) ?? [])).toHaveLength(20)
  })

  it('are refused for one service only', async () => {
    const harness = new WriterHarness(undefined, { chainsPerRestore: 7 })
    harness.check = refuse(/^-A KUBE-SEP-.*10\.0\.0\.13\b/, () => '')
    for (let n = 10; n < 20; n++) put(harness, n, `10.0.0.${n}`)
    const { refused } = await harness.sync()
    expect(new Set(refused.map(({ error }) => /ns\/s\d+/.exec(error.message)?.[0]))).toEqual(new Set(['ns/s13']))
    expect(rulesOf(harness.text, 'KUBE-NODEPORTS').filter((line) => line.includes('ns/s13'))).toEqual([])
  })
})

it('interrupts no other service when a line is named: each is in every text that is accepted', async () => {
  const harness = new WriterHarness()
  for (let n = 10; n < 20; n++) put(harness, n, `10.0.0.${n}`)
  const complain = refuse(/^-A KUBE-S\S+ .*10\.0\.0\.13\b/, (line) => `Error occurred at line: ${line}`)
  const accepted: string[] = []
  harness.check = (text) => {
    complain(text)
    accepted.push(text)
  }
  const { refused } = await harness.sync()
  expect(new Set(refused.map(({ id }) => id))).toContain('ns/s13:p80/tcp')
  expect(accepted.length).toBeGreaterThan(0)
  for (const text of accepted) for (const n of [10, 12, 14, 19]) expect(text).toContain(`ns/s${n}:p80`)
})

describe.each(styles)('a refusal as reported by %s', (_, words) => {
  it('isolates the service whose rules are refused', async () => {
    const harness = new WriterHarness()
    await harness.sync()
    harness.check = refuse(/^-A KUBE-S\S+ .*10\.0\.0\.13\b/, words)
    for (let n = 10; n < 20; n++) put(harness, n, `10.0.0.${n}`)
    const { refused, failures } = await harness.sync()
    expect(failures).toBeGreaterThan(0)
    expect(new Set(refused.map(({ error }) => error.code))).toEqual(new Set(['iptables-refused']))
    for (const { error } of refused) expect(error.message).toContain('ns/s13')
    expect(refused.map(({ id }) => id)).toContain('ns/s13:p80/tcp')
    expect(rulesOf(harness.text, 'KUBE-NODEPORTS').some((line) => line.includes('ns/s13'))).toBe(false)
    const held = [...harness.written.entries()].map(({ service: of }) => of)
    expect(new Set(held)).toEqual(new Set(['', ...[10, 11, 12, 14, 15, 16, 17, 18, 19].map((n) => `ns/s${n}`)]))
    // All others are settled, so there is nothing left to do.
    expect(diffAtOnce(harness.ledger).put).toEqual([])
  })

  it('leaves nothing of it in any table, even if one table accepted it before the other refused', async () => {
    const harness = new WriterHarness()
    await harness.sync()
    put(harness, 10, '10.0.0.10')
    harness.check = refuse(/ns\/s13/, words)
    put(harness, 13)
    await harness.sync()
    // The last text was accepted.
    expect(harness.text).not.toContain('ns/s13')
    expect(harness.text).toContain('ns/s10')
  })

  it('isolates several services, which keep what they had before', async () => {
    const harness = new WriterHarness()
    for (let n = 10; n < 20; n++) put(harness, n, `10.0.0.${n}`)
    await harness.sync()
    harness.check = refuse(/^-A KUBE-SEP-.*10\.9\.9\.1[26]\b/, words)
    for (let n = 10; n < 20; n++) put(harness, n, `10.9.9.${n}`)
    const { refused } = await harness.sync()
    expect(new Set(refused.map(({ error }) => /ns\/s\d+/.exec(error.message)?.[0]))).toEqual(
      new Set(['ns/s12', 'ns/s16']),
    )
    const texts = [...harness.written.entries()].map(({ digest }) => digest).join('')
    expect(texts).toContain('DNAT --to-destination 10.0.0.12:80')
    expect(texts).toContain('DNAT --to-destination 10.9.9.13:80')
    expect(texts).not.toContain('DNAT --to-destination 10.9.9.12:80')
  })

  it('keeps the ports that a refused service would lose, too', async () => {
    const ports = (count: number) => Array.from({ length: count }, (_, i) => tcp(80 + i, `p${80 + i}`))
    const harness = new WriterHarness()
    const give = (count: number, ip: string) =>
      harness.put(
        service({ key: 'ns/two', clusterIps: ['172.30.0.9'], ports: ports(count) }),
        ...ports(count).map(({ name, port }) =>
          slice([endpoint(ip)], { key: `ns/two-${name}`, service: 'ns/two', name, port }),
        ),
      )
    give(2, '10.0.0.1')
    await harness.sync()
    harness.check = refuse(/10\.9\.9\.9\b/, words)
    give(1, '10.9.9.9')
    const { refused } = await harness.sync()
    expect(refused.map(({ id }) => id).sort()).toEqual(['ns/two:p80/tcp', 'ns/two:p81/tcp'])
    expect(harness.text).toContain('"ns/two:p81 cluster IP"')
    harness.check = () => {}
    for (const { id } of refused) harness.ledger.retry(id)
    await harness.sync()
    expect(harness.text).not.toContain('ns/two:p81')
    expect(harness.text.match(/^-X /gm)).toHaveLength(3)
    expect(diffAtOnce(harness.ledger)).toEqual({ put: [], drop: [] })
  })

  it('does not blame a service for what is broken without it', async () => {
    const harness = new WriterHarness()
    put(harness, 1, '10.0.0.1')
    await harness.sync()
    harness.check = refuse(/"ns\/s1:p80 cluster IP"/, words)
    put(harness, 2, '10.0.0.2')
    await expect(harness.sync()).rejects.toMatchObject({ code: 'iptables-restore' })
    // Nothing of the failed write counts as written.
    expect([...harness.written.entries()].some(({ service: of }) => of === 'ns/s2')).toBe(false)
  })

  it('updates a service of which only old chains cannot be deleted', async () => {
    const harness = new WriterHarness()
    put(harness, 1, '10.0.0.1')
    await harness.sync()
    harness.check = refuse(/^-X KUBE-SEP-/, words)
    put(harness, 1, '10.0.0.2')
    const { refused, undeleted } = await harness.sync()
    // The service is as it should be. The chain belongs to no entry any more, and must be found again.
    expect(refused).toEqual([])
    expect(undeleted?.message).toContain('chains of ns/s1 cannot be deleted')
    expect(harness.text).toContain('10.0.0.2:80')
  })

  it('tries again to delete chains of a service that is gone', async () => {
    const harness = new WriterHarness()
    put(harness, 1, '10.0.0.1')
    await harness.sync()
    harness.check = refuse(/^-X KUBE-SEP-/, words)
    harness.drop('ns/s1')
    const { refused, undeleted } = await harness.sync()
    expect(refused.map(({ id }) => id)).toEqual(['ns/s1:p80/tcp'])
    expect(undeleted).toBeUndefined()
    expect(harness.text).not.toContain('ns/s1')
    harness.check = () => {}
    harness.ledger.retry('ns/s1:p80/tcp')
    await harness.sync()
    expect(harness.text.match(/^-X /gm)).toHaveLength(3)
    expect(diffAtOnce(harness.ledger)).toEqual({ put: [], drop: [] })
  })
})

it('throws errors that are not a refusal, such as a lock or an abort', async () => {
  const harness = new WriterHarness()
  harness.check = () => {
    throw new ProxyError('iptables-locked', 'another process holds the lock')
  }
  await expect(harness.sync()).rejects.toMatchObject({ code: 'iptables-locked' })
  expect(harness.texts).toHaveLength(1)
})

describe('what a machine cannot do', () => {
  const base = async (features: Partial<typeof allFeatures>) => {
    const harness = new WriterHarness(undefined, { features: { ...allFeatures, ...features } })
    put(harness, 1, '10.0.0.1')
    await harness.sync()
    return harness.text
  }

  it('H14: drops packets that belong to no connection, unless tracking is liberal about them', async () => {
    expect(await base({})).toContain('--ctstate INVALID')
    expect(await base({ liberal: true })).not.toContain('INVALID')
  })

  it('is left out', async () => {
    expect(await base({ randomFully: true })).toContain('-j MASQUERADE --random-fully\n')
    expect(await base({})).toContain('-j MASQUERADE\n')
    const uncounted = await base({ counters: new Set() })
    expect(uncounted).toContain('--ctstate INVALID -j DROP')
    expect(uncounted).not.toContain('nfacct')
    expect(rulesOf(uncounted, 'KUBE-NODEPORTS').filter((line) => line.includes('--dport 3001'))).toHaveLength(1)
  })

  it('is not looked for in other text', () => {
    expect(adapt('-A X -j Y\n', { ...allFeatures, counters: new Set() })).toBe('-A X -j Y\n')
  })
})

it('composes exactly the chains and jumps that are missing', () => {
  const text = composeJumps(
    jumps.filter(({ to }) => to === 'KUBE-POSTROUTING'),
    (table, chain) => table === 'nat' && chain !== 'KUBE-PROXY-CANARY',
  )
  expect(text).toBe(
    '*nat\n:KUBE-POSTROUTING - [0:0]\n-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING\nCOMMIT\n',
  )
  expect(composeJumps([], () => false)).toBe('')
})

it('finds the lines that an error message may mean', () => {
  const text = '*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j B\n-X KUBE-C\nCOMMIT\n'
  expect(suspectLines('line 3: RULE_APPEND failed', text)).toEqual(['-A KUBE-A -j B', ':KUBE-A - [0:0]'])
  expect(suspectLines('Error occurred at line: 4', text)).toEqual(['-X KUBE-C', '-A KUBE-A -j B'])
  expect(suspectLines('line 5 failed', text)).toEqual(['-X KUBE-C'])
  expect(suspectLines('no line is named', text)).toEqual([])
})
