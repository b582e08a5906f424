// What is written when, and what happens when the programs refuse: who is blamed, who goes in all the same.

import { describe, expect, it } from 'vitest'
import { strayChain } from '../../../src/backend/iptables/entries.ts'
import { adapt } from '../../../src/backend/iptables/features.ts'
import { composeJumps, suspectLines } from '../../../src/backend/iptables/restore.ts'
import { jumps } from '../../../src/backend/iptables-kit/chains.ts'
import { ProxyError } from '../../../src/lib/errors.ts'
import { ExecError } from '../../../src/sys/process/exec.ts'
import { endpoint, service, slice, tcp } from '../../model/builders.ts'
import { allFeatures, Bench, rulesOf } from './write.ts'

const put = (bench: Bench, n: number, ...ips: string[]) =>
  bench.put(
    service({ key: `ns/s${n}`, clusterIps: [`172.30.0.${n}`], type: 'NodePort', ports: [tcp(80, 'p80', 3000 + n)] }),
    slice(
      ips.map((ip) => endpoint(ip)),
      { key: `ns/s${n}-a`, service: `ns/s${n}` },
    ),
  )

const failure = (stderr: string) =>
  new ExecError({ program: 'iptables-restore', args: [], what: 'ended with exit code 1', exitCode: 1, stderr })

/** Complains like the program does, about the first line that matches. */
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
  ['a program that says nothing', () => ''],
]

describe('writing', () => {
  it('writes nothing of unchanged services but their part of the shared chains', async () => {
    const bench = new Bench()
    put(bench, 1, '10.0.0.1')
    put(bench, 2, '10.0.0.2')
    await bench.sync()
    put(bench, 2, '10.0.0.2', '10.0.0.3')
    const { lines } = await bench.sync()
    expect(bench.texts).toHaveLength(2)
    expect(bench.text).toContain('"ns/s1:p80 cluster IP"')
    expect(bench.text).not.toMatch(/^:KUBE-SEP-.*\n(?:.*\n)*.*10\.0\.0\.1/m)
    expect(bench.text.match(/^:KUBE-(?:SVC|SEP|EXT)-/gm)).toHaveLength(2)
    expect(lines).toEqual({
      filter: bench.text.slice(0, bench.text.indexOf('*nat')).match(/^-/gm)?.length,
      nat: bench.text.slice(bench.text.indexOf('*nat')).match(/^-/gm)?.length,
    })
  })

  it('forgets what is not among it when everything is written anew', async () => {
    const bench = new Bench()
    for (const n of [1, 2, 3]) put(bench, n, `10.0.0.${n}`)
    await bench.sync()
    // As many as before, so that counting alone does not tell.
    bench.drop('ns/s2')
    put(bench, 4, '10.0.0.4')
    bench.ledger.reset([])
    bench.writer.startAnew()
    await bench.sync()
    expect(bench.text).not.toContain('ns/s2')
    expect([...bench.book.entries()].some(({ service: of }) => of === 'ns/s2')).toBe(false)
    put(bench, 1, '10.0.0.9')
    await bench.sync()
    expect(bench.text).toContain('"ns/s3:p80 cluster IP"')
  })

  const ownChains = (text: string) =>
    [...text.matchAll(/^:(KUBE-(?:SVC|EXT|SEP)-\S+)/gm)].map((match) => match[1] as string)

  it('deletes chains of what was forgotten when everything is written anew', async () => {
    const bench = new Bench()
    for (const n of [1, 2]) put(bench, n, `10.0.0.${n}`)
    await bench.sync()
    const all = ownChains(bench.text)
    bench.drop('ns/s2')
    put(bench, 1, '10.0.0.9')
    bench.ledger.reset([])
    bench.writer.startAnew()
    await bench.sync()
    const gone = bench.text.match(/^-X \S+/gm)?.map((line) => line.slice(3)) ?? []
    // All of the second service, and the old endpoint of the first.
    expect(gone).toHaveLength(4)
    for (const chain of gone) expect(all).toContain(chain)
    expect(ownChains(bench.text)).toHaveLength(3 + 4)
  })

  it('deletes chains that a predecessor left, but none that is wanted', async () => {
    const bench = new Bench()
    put(bench, 1, '10.0.0.1')
    await bench.sync()
    const wanted = ownChains(bench.text)
    const heir = new Bench()
    put(heir, 1, '10.0.0.1')
    heir.ledger.reset([...wanted, 'KUBE-SVC-LEFT', 'KUBE-SEP-LEFT'].map(strayChain))
    heir.writer.startAnew()
    await heir.sync()
    expect(heir.text.match(/^-X .*/gm)).toEqual(['-X KUBE-SVC-LEFT', '-X KUBE-SEP-LEFT'])
    expect(ownChains(heir.text)).toEqual([...wanted, 'KUBE-SVC-LEFT', 'KUBE-SEP-LEFT'])
    expect(heir.ledger.diff()).toEqual({ put: [], drop: [] })
  })

  it('writes only the chains of a service port that changed', async () => {
    const bench = new Bench()
    put(bench, 1, '10.0.0.1', '10.0.0.2', '10.0.0.3')
    put(bench, 2, '10.0.0.1')
    await bench.sync()
    put(bench, 1, '10.0.0.1', '10.0.0.2', '10.0.0.4')
    await bench.sync()
    // The service's own, the new endpoint's, and the old one's, which goes.
    expect(ownChains(bench.text).map((chain) => chain.slice(0, 8))).toEqual(['KUBE-SVC', 'KUBE-SEP', 'KUBE-SEP'])
    expect(bench.text.match(/^-X /gm)).toHaveLength(1)
    expect(bench.text).toContain('10.0.0.4:80')
    expect(bench.text).not.toContain('--to-destination 10.0.0.1:80')
  })

  it('does not depend on the order in which services came', async () => {
    const orders = [
      [1, 2, 3],
      [3, 1, 2],
    ]
    const texts = await Promise.all(
      orders.map(async (order) => {
        const bench = new Bench()
        for (const n of order) put(bench, n, `10.0.0.${n}`)
        await bench.sync()
        return bench.text
      }),
    )
    expect(texts[0]).toBe(texts[1])
  })

  it('empties and deletes the chains of a service that is gone, in the same restore', async () => {
    const bench = new Bench()
    put(bench, 1, '10.0.0.1')
    await bench.sync()
    const own = [...bench.text.matchAll(/^:(KUBE-(?:SVC|EXT|SEP)-\S+)/gm)].map((match) => match[1] as string)
    bench.drop('ns/s1')
    await bench.sync()
    expect(own).toHaveLength(3)
    for (const chain of own) {
      expect(bench.text).toContain(`:${chain} - [0:0]\n`)
      expect(bench.text).toContain(`-X ${chain}\n`)
    }
    expect(bench.text).not.toContain('ns/s1')
    expect(rulesOf(bench.text, 'KUBE-SERVICES')).toHaveLength(1)
    expect(bench.book.lines('nat')).toBe(5)
  })

  it('keeps count of rules and uses through any history', async () => {
    const bench = new Bench()
    for (let n = 1; n < 6; n++) put(bench, n, `10.0.0.${n}`, '10.0.1.1')
    await bench.sync()
    put(bench, 2)
    bench.drop('ns/s3')
    await bench.sync()
    const fresh = new Bench()
    for (const n of [1, 4, 5]) put(fresh, n, `10.0.0.${n}`, '10.0.1.1')
    put(fresh, 2)
    await fresh.sync()
    expect([...bench.book.uses()].sort()).toEqual([...fresh.book.uses()].sort())
    expect(bench.book.lines('nat')).toBe(fresh.text.slice(fresh.text.indexOf('*nat')).match(/^-A/gm)?.length)
    expect(bench.book.endpoints).toBe(6)
  })
})

describe('very many chains', () => {
  const rules = (text: string) => text.split('\n').filter((line) => line.startsWith('-A'))

  it('are written in several restores, before anything jumps to them, and deleted after nothing does', async () => {
    const whole = new Bench()
    const parts = new Bench(undefined, { chainsPerRestore: 7 })
    for (const bench of [whole, parts]) for (let n = 1; n < 8; n++) put(bench, n, `10.0.0.${n}`)
    await whole.sync()
    const { lines } = await parts.sync()
    // Three chains each: two services fit.
    expect(parts.texts).toHaveLength(5)
    expect(new Set(parts.texts.flatMap(rules))).toEqual(new Set(rules(whole.text)))
    expect(lines.nat).toBe(parts.texts.join('').match(/^-A KUBE-(?!F)(?!EXTERNAL)/gm)?.length)
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

  it('are refused only where they must be', async () => {
    const bench = new Bench(undefined, { chainsPerRestore: 7 })
    bench.judge = refuse(/^-A KUBE-SEP-.*10\.0\.0\.13\b/, () => '')
    for (let n = 10; n < 20; n++) put(bench, n, `10.0.0.${n}`)
    const { refused } = await bench.sync()
    expect(new Set(refused.map(({ error }) => /ns\/s\d+/.exec(error.message)?.[0]))).toEqual(new Set(['ns/s13']))
    expect(rulesOf(bench.text, 'KUBE-NODEPORTS').filter((line) => line.includes('ns/s13'))).toEqual([])
  })
})

it('interrupts nobody when a line is told: no text that goes in lacks another service', async () => {
  const bench = new Bench()
  for (let n = 10; n < 20; n++) put(bench, n, `10.0.0.${n}`)
  const judge = refuse(/^-A KUBE-S\S+ .*10\.0\.0\.13\b/, (line) => `Error occurred at line: ${line}`)
  const accepted: string[] = []
  bench.judge = (text) => {
    judge(text)
    accepted.push(text)
  }
  const { refused } = await bench.sync()
  expect(new Set(refused.map(({ id }) => id))).toContain('ns/s13:p80/tcp')
  expect(accepted.length).toBeGreaterThan(0)
  for (const text of accepted) for (const n of [10, 12, 14, 19]) expect(text).toContain(`ns/s${n}:p80`)
})

describe.each(styles)('a refusal in the words of %s', (_, words) => {
  it('isolates the service whose rules are refused', async () => {
    const bench = new Bench()
    await bench.sync()
    bench.judge = refuse(/^-A KUBE-S\S+ .*10\.0\.0\.13\b/, words)
    for (let n = 10; n < 20; n++) put(bench, n, `10.0.0.${n}`)
    const { refused, failures } = await bench.sync()
    expect(failures).toBeGreaterThan(0)
    expect(new Set(refused.map(({ error }) => error.code))).toEqual(new Set(['iptables-refused']))
    for (const { error } of refused) expect(error.message).toContain('ns/s13')
    expect(refused.map(({ id }) => id)).toContain('ns/s13:p80/tcp')
    expect(rulesOf(bench.text, 'KUBE-NODEPORTS').some((line) => line.includes('ns/s13'))).toBe(false)
    const held = [...bench.book.entries()].map(({ service: of }) => of)
    expect(new Set(held)).toEqual(new Set(['', ...[10, 11, 12, 14, 15, 16, 17, 18, 19].map((n) => `ns/s${n}`)]))
    // All others are settled: there is nothing more to do.
    expect(bench.ledger.diff().put).toEqual([])
  })

  it('leaves nothing of it in any table, even if one took it before the other refused', async () => {
    const bench = new Bench()
    await bench.sync()
    put(bench, 10, '10.0.0.10')
    bench.judge = refuse(/ns\/s13/, words)
    put(bench, 13)
    await bench.sync()
    // The last text is the one that counts, and it went in.
    expect(bench.text).not.toContain('ns/s13')
    expect(bench.text).toContain('ns/s10')
  })

  it('isolates several, and keeps what they had before', async () => {
    const bench = new Bench()
    for (let n = 10; n < 20; n++) put(bench, n, `10.0.0.${n}`)
    await bench.sync()
    bench.judge = refuse(/^-A KUBE-SEP-.*10\.9\.9\.1[26]\b/, words)
    for (let n = 10; n < 20; n++) put(bench, n, `10.9.9.${n}`)
    const { refused } = await bench.sync()
    expect(new Set(refused.map(({ error }) => /ns\/s\d+/.exec(error.message)?.[0]))).toEqual(
      new Set(['ns/s12', 'ns/s16']),
    )
    const texts = [...bench.book.entries()].map(({ digest }) => digest).join('')
    expect(texts).toContain('DNAT --to-destination 10.0.0.12:80')
    expect(texts).toContain('DNAT --to-destination 10.9.9.13:80')
    expect(texts).not.toContain('DNAT --to-destination 10.9.9.12:80')
  })

  it('keeps also the ports that a refused service would lose', async () => {
    const ports = (count: number) => Array.from({ length: count }, (_, i) => tcp(80 + i, `p${80 + i}`))
    const bench = new Bench()
    const give = (count: number, ip: string) =>
      bench.put(
        service({ key: 'ns/two', clusterIps: ['172.30.0.9'], ports: ports(count) }),
        ...ports(count).map(({ name, port }) =>
          slice([endpoint(ip)], { key: `ns/two-${name}`, service: 'ns/two', name, port }),
        ),
      )
    give(2, '10.0.0.1')
    await bench.sync()
    bench.judge = refuse(/10\.9\.9\.9\b/, words)
    give(1, '10.9.9.9')
    const { refused } = await bench.sync()
    expect(refused.map(({ id }) => id).sort()).toEqual(['ns/two:p80/tcp', 'ns/two:p81/tcp'])
    expect(bench.text).toContain('"ns/two:p81 cluster IP"')
    bench.judge = () => {}
    for (const { id } of refused) bench.ledger.retry(id)
    await bench.sync()
    expect(bench.text).not.toContain('ns/two:p81')
    expect(bench.text.match(/^-X /gm)).toHaveLength(3)
    expect(bench.ledger.diff()).toEqual({ put: [], drop: [] })
  })

  it('does not blame a service for what is broken without it', async () => {
    const bench = new Bench()
    put(bench, 1, '10.0.0.1')
    await bench.sync()
    bench.judge = refuse(/"ns\/s1:p80 cluster IP"/, words)
    put(bench, 2, '10.0.0.2')
    await expect(bench.sync()).rejects.toMatchObject({ code: 'iptables-restore' })
    // Nothing of the failed write is taken for written.
    expect([...bench.book.entries()].some(({ service: of }) => of === 'ns/s2')).toBe(false)
  })

  it('lets a service go on when only its old chains cannot be deleted', async () => {
    const bench = new Bench()
    put(bench, 1, '10.0.0.1')
    await bench.sync()
    bench.judge = refuse(/^-X KUBE-SEP-/, words)
    put(bench, 1, '10.0.0.2')
    const { refused, left } = await bench.sync()
    // The service is as it should be; the chain is nobody's any more, and has to be found again.
    expect(refused).toEqual([])
    expect(left?.message).toContain('chains of ns/s1 cannot be deleted')
    expect(bench.text).toContain('10.0.0.2:80')
  })

  it('does not give up chains of a service that is gone, and cannot be deleted yet', async () => {
    const bench = new Bench()
    put(bench, 1, '10.0.0.1')
    await bench.sync()
    bench.judge = refuse(/^-X KUBE-SEP-/, words)
    bench.drop('ns/s1')
    const { refused, left } = await bench.sync()
    expect(refused.map(({ id }) => id)).toEqual(['ns/s1:p80/tcp'])
    expect(left).toBeUndefined()
    expect(bench.text).not.toContain('ns/s1')
    bench.judge = () => {}
    bench.ledger.retry('ns/s1:p80/tcp')
    await bench.sync()
    expect(bench.text.match(/^-X /gm)).toHaveLength(3)
    expect(bench.ledger.diff()).toEqual({ put: [], drop: [] })
  })
})

it('passes on what is no refusal, like a lock or an abort', async () => {
  const bench = new Bench()
  bench.judge = () => {
    throw new ProxyError('iptables-locked', 'somebody holds the lock')
  }
  await expect(bench.sync()).rejects.toMatchObject({ code: 'iptables-locked' })
  expect(bench.texts).toHaveLength(1)
})

describe('what a machine cannot do', () => {
  const base = async (features: Partial<typeof allFeatures>) => {
    const bench = new Bench(undefined, { features: { ...allFeatures, ...features } })
    put(bench, 1, '10.0.0.1')
    await bench.sync()
    return bench.text
  }

  it('H14: packets of no connection are dropped, unless tracking is liberal about them', async () => {
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

  it('leaves other text as it is', () => {
    expect(adapt('-A X -j Y\n', { ...allFeatures, counters: new Set() })).toBe('-A X -j Y\n')
  })
})

it('makes exactly the chains and jumps that are missing', () => {
  const text = composeJumps(
    jumps.filter(({ to }) => to === 'KUBE-POSTROUTING'),
    (table, chain) => table === 'nat' && chain !== 'KUBE-PROXY-CANARY',
  )
  expect(text).toBe(
    '*nat\n:KUBE-POSTROUTING - [0:0]\n-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING\nCOMMIT\n',
  )
  expect(composeJumps([], () => false)).toBe('')
})

it('finds the lines that a complaint may mean', () => {
  const text = '*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j B\n-X KUBE-C\nCOMMIT\n'
  expect(suspectLines('line 3: RULE_APPEND failed', text)).toEqual(['-A KUBE-A -j B', ':KUBE-A - [0:0]'])
  expect(suspectLines('Error occurred at line: 4', text)).toEqual(['-X KUBE-C', '-A KUBE-A -j B'])
  expect(suspectLines('line 5 failed', text)).toEqual(['-X KUBE-C'])
  expect(suspectLines('no word of lines', text)).toEqual([])
})
