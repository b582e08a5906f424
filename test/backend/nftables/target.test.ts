import { describe, expect, it } from 'vitest'
import { frontendEntry } from '../../../src/backend/nftables/entries.ts'
import type { SliceRecord } from '../../../src/model/types.ts'
import { EBUSY, EINTR, ENOBUFS, ENOMEM, ERESTART } from '../../../src/sys/errno.ts'
import { endpoint, service, slice, view } from '../../support/builders.ts'
import { runAtOnce } from '../../support/run-at-once.ts'
import { listContents, TargetHarness } from './target-harness.ts'

const numbered = (i: number) =>
  service({ key: `ns/svc${i}`, clusterIps: [`172.30.${i >> 8}.${i & 255}`], uid: `uid-${i}` })

function sliceOf(i: number, ...hosts: readonly number[]): SliceRecord {
  const list = hosts.map((host) => endpoint(`10.180.${i & 255}.${host}`))
  return slice(list, { key: `ns/svc${i}-a`, service: `ns/svc${i}`, family: 4 })
}

/** Syncs services 1 to `count` with endpoints 1, 2 and 3 each. */
async function loadServices(count: number, harness = new TargetHarness()): Promise<TargetHarness> {
  for (let i = 1; i <= count; i++) harness.put(numbered(i), sliceOf(i, 1, 2, 3))
  await harness.sync()
  return harness
}

const change = (harness: TargetHarness, i: number, ...hosts: readonly number[]) =>
  harness.writes(async () => {
    harness.put(numbered(i), sliceOf(i, ...hosts))
    await harness.sync()
  })

const count = (harness: TargetHarness, set: string): number => harness.kernel.state.elements.get(set)?.size ?? 0

describe('a change', () => {
  it('deletes and adds one slot for a replaced endpoint', async () => {
    const harness = await loadServices(20)
    expect(await change(harness, 7, 1, 9, 3)).toEqual([['delete element endpoints', 'add element endpoints']])
  })

  it('adds one slot and changes one verdict for an added endpoint, and makes a new chain one transaction before', async () => {
    const harness = await loadServices(20)
    const elements = ['delete element service-ips', 'add element endpoints', 'add element service-ips']
    expect(await change(harness, 7, 1, 2, 3, 4)).toEqual([
      ['add chain lb-4', 'add rule lb-4', 'add rule lb-4'],
      elements,
    ])
    expect(await change(harness, 8, 1, 2, 3, 4)).toEqual([elements])
  })

  it('keeps the slot of a removed endpoint for more than a second, then sweeps it with the chain that nothing leads into', async () => {
    const harness = await loadServices(1)
    expect(await change(harness, 1, 2, 3)).toHaveLength(2)
    await harness.clock.advance(1_000)
    expect(count(harness, 'endpoints')).toBe(3)
    await harness.sweepAll()
    expect(count(harness, 'endpoints')).toBe(2)
    expect([...harness.kernel.state.chains.keys()].filter((name) => name.startsWith('lb-'))).toEqual(['lb-2'])
  })

  it('does not delay sweeps, even if changes never cease', async () => {
    const harness = await loadServices(1)
    for (let i = 2; i < 40; i++) {
      harness.drop(`ns/svc${i - 1}`)
      harness.put(numbered(i), sliceOf(i, 1, 2, 3))
      await harness.sync()
      await harness.clock.advance(300)
    }
    expect(count(harness, 'endpoints')).toBeLessThan(3 * 12)
  })

  it('needs no dump', async () => {
    const harness = await loadServices(3)
    const reads = harness.kernel.reads
    await change(harness, 1, 1, 2)
    await harness.sweepAll()
    expect(harness.kernel.reads).toBe(reads)
  })

  /** A third of the addresses and verdicts of 2,000 services, and one more service. */
  const mostOperations = (2_000 * 2) / 3 + 10

  it('of many services is sent in transactions of bounded size, with hooks last', async () => {
    const harness = new TargetHarness()
    let turns = 0
    let running = true
    const turn = () => {
      turns++
      if (running) setImmediate(turn)
    }
    setImmediate(turn)
    const batches = await harness.writes(() => loadServices(2_000, harness))
    running = false
    expect(batches.length).toBeGreaterThan(5)
    expect(Math.max(...batches.map((batch) => batch.length))).toBeLessThan(mostOperations)
    expect(turns).toBeGreaterThanOrEqual(batches.length - 2)
    const hooked = batches.findIndex((batch) => batch.includes('add chain nat-prerouting'))
    expect(hooked).toBe(batches.length - 1)
    // The first ones are the smallest: later ones may be a part of what the table has.
    expect(Math.max(...harness.kernel.sizes.slice(0, 3))).toBeLessThan(1_100)
    expect(Math.max(...harness.kernel.sizes)).toBeLessThan(mostOperations)
    // Every service has a cluster IP, a verdict and slots; one more element is the address of node ports.
    expect(harness.kernel.sizes.reduce((sum, size) => sum + size)).toBe(2_000 * (1 + 1 + 3) + 1)
  })

  it('that removes many services is sent and swept in transactions of bounded size, too', async () => {
    const harness = await loadServices(2_000)
    harness.kernel.sizes.length = 0
    for (let i = 1; i <= 2_000; i++) harness.drop(`ns/svc${i}`)
    await harness.sync()
    await harness.clock.advance(3_000)
    const swept = () => harness.kernel.sizes.reduce((sum, size) => sum + size) >= 2_000 * (1 + 1 + 3)
    while (!swept()) await new Promise((resolve) => setImmediate(resolve))
    expect(harness.kernel.state.elements.get('endpoints')?.size).toBe(0)
    expect(Math.max(...harness.kernel.sizes)).toBeLessThan(mostOperations)
  })
})

describe('a pause between two transactions', () => {
  const sticky = { ...numbered(1), affinitySeconds: 60 }
  const ips = (length: number) => Array.from({ length }, (_, i) => `10.8.${i >> 8}.${i & 255}`)
  const sliceOfMany = (length: number) =>
    slice(
      ips(length).map((ip) => endpoint(ip)),
      { service: sticky.key },
    )

  /** Syncs until everything is written and swept. */
  async function finish(harness: TargetHarness): Promise<void> {
    while ((await harness.sync()).resume !== undefined) await harness.clock.advance(3_000)
    await harness.clock.advance(5_000)
  }

  it('leaves the rest for the next sync, also if the service grows, changes and goes meanwhile', async () => {
    const harness = new TargetHarness()
    harness.pauses = true
    const lengths = [250, 500, 480, 700, 100]
    let paused = 0
    for (const length of lengths) {
      harness.put(sticky, sliceOfMany(length))
      const { resume, refused } = await harness.sync()
      if (resume !== undefined) paused++
      expect(refused).toEqual([])
      await harness.clock.advance(700)
    }
    expect(paused).toBeGreaterThan(2)
    await finish(harness)
    harness.put(sticky, sliceOfMany(350))
    await harness.sync()
    harness.put(sticky, sliceOfMany(900))
    await finish(harness)
    harness.put(sticky, sliceOfMany(100))
    await finish(harness)
    const fresh = new TargetHarness()
    fresh.put(sticky, sliceOfMany(100))
    await fresh.sync()
    const names = ({ kernel }: TargetHarness) =>
      [...kernel.state.chains.keys(), ...kernel.state.sets.keys()].filter((name) => !name.startsWith('__')).sort()
    expect(names(harness)).toEqual(names(fresh))
    harness.drop(sticky.key)
    await finish(harness)
    const empty = new TargetHarness()
    await empty.sync()
    expect(names(harness)).toEqual(names(empty))
    expect(harness.due).toEqual([])
  })

  it('goes on where it paused, however many steps need no operation, with changes of others in between', async () => {
    const harness = new TargetHarness()
    await harness.sync()
    const wide = { ...numbered(1), externalIps: ips(5_000) }
    const expected = new TargetHarness()
    harness.put(wide, slice([endpoint('10.9.0.1')], { service: wide.key }))
    harness.pauses = true
    let applied = await harness.sync()
    let written = applied.written?.put.length ?? 0
    runAtOnce(harness.ledger.postpone((id) => id.includes('10.8.')))
    for (let turn = 2; applied.resume !== undefined; turn++) {
      for (const one of [harness, expected]) one.put(numbered(turn), sliceOf(turn, 1, 2))
      expect((await harness.sync()).resume).toBe(undefined)
      applied = await harness.resume(applied)
      written += applied.written?.put.length ?? 0
    }
    // The cluster IP is a frontend and a member of a set.
    expect(written).toBe(5_002)
    harness.pauses = false
    await harness.sync()
    expected.put(wide, slice([endpoint('10.9.0.1')], { service: wide.key }))
    await expected.sync()
    expect(listContents(harness)).toEqual(listContents(expected))
  })
})

describe('isolation', () => {
  it('reports only the service that the kernel refuses, and accepts it later', async () => {
    const harness = await loadServices(3)
    harness.kernel.refuses = (text) => (text === 'add rule lb-5' ? 28 : undefined)
    harness.put(numbered(2), sliceOf(2, 1, 2, 3, 4, 5))
    harness.put(numbered(3), sliceOf(3, 1, 2, 9))
    harness.put(numbered(4), sliceOf(4, 1))
    const { refused } = await harness.sync()
    expect(refused.map(({ id }) => id)).toEqual(['frontend 172.30.0.2 tcp 80'])
    expect(refused[0]?.error.message).toContain('172.30.0.2')
    // The refused service keeps its old endpoints, and the others are changed.
    expect(count(harness, 'endpoints')).toBe(3 + 3 + 3 + 1)
    harness.kernel.refuses = () => undefined
    harness.ledger.retry('frontend 172.30.0.2 tcp 80')
    expect((await harness.sync()).refused).toEqual([])
    expect(count(harness, 'endpoints')).toBe(3 + 5 + 3 + 1)
  })

  it('reports with a refused chain what leads into it, and nothing else', async () => {
    const harness = await loadServices(2)
    harness.kernel.refuses = (text) => (/add chain endpoint-.*svc3/.test(text) ? 28 : undefined)
    harness.put({ ...numbered(3), affinitySeconds: 60 }, sliceOf(3, 1))
    harness.put({ ...numbered(4), affinitySeconds: 60 }, sliceOf(4, 1))
    const { refused } = await harness.sync()
    expect(refused.length).toBeGreaterThan(1)
    for (const { id } of refused) expect(id).toMatch(/svc3|172\.30\.0\.3/)
    expect([...harness.kernel.state.chains.keys()].filter((name) => name.includes('svc4'))).toHaveLength(2)
  })

  it('reports an entry that cannot be encoded', async () => {
    const harness = await loadServices(1)
    const bad = frontendEntry({
      ip: '172.30.0.9',
      protocol: 'tcp',
      port: 80,
      policy: 'plain',
      cluster: ['10.0.0.1:99999'],
      local: [],
      comment: 'ns/bad',
    })
    harness.ledger.want('ns/bad', [bad])
    harness.put(numbered(2), sliceOf(2, 1))
    const { refused } = await harness.sync()
    expect(refused.map(({ id }) => id)).toEqual(['frontend 172.30.0.9 tcp 80'])
    expect(count(harness, 'endpoints')).toBe(4)
  })

  it.each([
    ['ERESTART', ERESTART],
    ['EINTR', EINTR],
    ['ENOMEM', ENOMEM],
    ['EBUSY', EBUSY],
    ['ENOBUFS', ENOBUFS],
  ])(
    'tries again after %s, and gives up after five attempts, so that the next sync observes the kernel',
    async (_, errno) => {
      const harness = await loadServices(1)
      harness.kernel.script.push(errno, errno, errno, errno)
      const patient = change(harness, 1, 1, 2, 8)
      await harness.clock.advance(1_000)
      expect(await patient).toHaveLength(1)

      harness.kernel.script.push(errno, errno, errno, errno, errno)
      const failing = change(harness, 1, 1, 2, 7)
      failing.catch(() => undefined)
      await harness.clock.advance(1_000)
      await expect(failing).rejects.toThrow()
      expect(await harness.writes(() => harness.sync())).toEqual([
        ['delete element endpoints', 'add element endpoints'],
      ])
    },
  )
})

describe('a sweep that is refused', () => {
  it('several times, because an unknown object refers to a chain, leads to an exchange of the table', async () => {
    const harness = await loadServices(1)
    harness.kernel.refuses = (text) => (text === 'delete chain lb-3' ? EBUSY : undefined)
    await change(harness, 1, 2, 3)
    await harness.clock.advance(3_000)
    expect(harness.target.drifted()).toBe(false)
    expect(harness.due).toEqual([])
    await harness.clock.advance(5_000)
    expect(harness.target.drifted()).toBe(true)
    expect(harness.due).toHaveLength(1)
    harness.distrust()
    await harness.sync()
    expect([...harness.kernel.state.chains.keys()].filter((name) => name.startsWith('lb-'))).toEqual(['lb-2'])
    expect(harness.target.drifted()).toBe(false)
  })
})

describe('the owner of the table', () => {
  it('writes nothing after a crash when nothing changed', async () => {
    const first = await loadServices(5)
    first.kernel.owner = 0
    const second = new TargetHarness(view(), first.kernel)
    const batches = await second.writes(() => loadServices(5, second))
    expect(batches).toEqual([[]])
    expect(first.kernel.owner).not.toBe(0)
  })

  it('leaves a table without an owner at the end, and exchanges it in one transaction at the next start', async () => {
    const first = await loadServices(5)
    await first.target.close()
    expect(first.kernel.state.flags).toBe(0)
    expect(first.kernel.state.elements.get('endpoints')?.size).toBe(15)
    const second = new TargetHarness(view(), first.kernel)
    expect(await second.writes(() => loadServices(5, second))).toHaveLength(1)
    expect(first.kernel.state.flags).toBe(6)
  })

  it('keeps the clients of affinity sets in an exchange', async () => {
    const sticky = { ...numbered(1), affinitySeconds: 60 }
    const first = new TargetHarness()
    first.put(sticky, sliceOf(1, 1, 2))
    await first.sync()
    const set = [...first.kernel.state.sets.keys()].find((name) => name.startsWith('affinity-')) as string
    const client = { key: Uint8Array.of(203, 0, 113, 2) }
    first.kernel.tamper((state) => state.elements.get(set)?.set('cb007102', client))
    await first.target.close()
    expect(first.kernel.state.flags).toBe(0)
    const second = new TargetHarness(view(), first.kernel)
    second.put(sticky, sliceOf(1, 1, 2))
    await second.sync()
    expect(first.kernel.state.elements.get(set)?.size).toBe(1)
  })

  it('is unique: a second proxy reports that, changes nothing, and takes over when the first is gone', async () => {
    const first = await loadServices(2)
    const before = first.kernel.generation
    const second = new TargetHarness(view(), first.kernel)
    await expect(loadServices(2, second)).rejects.toThrow('another process owns our table: is a second proxy running?')
    await second.clock.advance(2_000)
    expect(second.due).toEqual([])
    expect(first.kernel.generation).toBe(before)
    await first.target.close()
    await second.clock.advance(1_000)
    expect(second.due.length).toBeGreaterThan(0)
    expect((await second.sync()).refused).toEqual([])
    expect(first.kernel.state.flags).toBe(6)
  })

  it('notices that its socket is lost, and reports it until it has a new one', async () => {
    const harness = await loadServices(2)
    await harness.clock.advance(60_000)
    expect(harness.drifts).toEqual([])
    harness.socket.isLost = true
    await harness.clock.advance(20_000)
    expect(harness.drifts).toHaveLength(2)
    expect(harness.drifts[0]).toContain('the socket that owns the table was lost')
    harness.socket.isLost = false
    await harness.clock.advance(60_000)
    expect(harness.drifts).toHaveLength(2)
    await harness.target.close()
  })

  it('notices a lost socket also if another operation has opened it again', async () => {
    const harness = await loadServices(2)
    harness.socket.timesOpened++
    expect(harness.target.drifted()).toBe(true)
    await harness.clock.advance(10_000)
    expect(harness.drifts).toHaveLength(1)
    await harness.target.observe(new AbortController().signal)
    expect(harness.target.drifted()).toBe(false)
    await harness.clock.advance(60_000)
    expect(harness.drifts).toHaveLength(1)
    await harness.target.close()
  })

  it('releases only a table that it owned', async () => {
    const first = await loadServices(2)
    const second = new TargetHarness(view(), first.kernel)
    await expect(loadServices(2, second)).rejects.toThrow()
    await second.target.close()
    expect(first.kernel.state.flags).toBe(6)
    expect(await change(first, 1, 1, 2, 8)).toHaveLength(1)
  })
})
