// What counts as a change by someone else: addresses, set sizes, rules and servers; and when the checks run.

import { describe, expect, it } from 'vitest'
import {
  type AddressChange,
  DriftChecks,
  describeAddressDrift,
  describeSetDrift,
  isServerUnchanged,
  RuleDrift,
} from '../../../src/backend/ipvs/drift.ts'
import { composeRules } from '../../../src/backend/ipvs/rule-text.ts'
import { addMissingJumps, findOwnRules } from '../../../src/backend/ipvs/saved-rules.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { Mutex } from '../../../src/lib/mutex.ts'
import type { VirtualServer } from '../../../src/sys/netlink/ipvs.ts'
import { view } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'

describe('addresses', () => {
  const expected = { bound: new Set(['172.30.0.1']), elsewhere: new Set(['192.0.2.1']) }
  const describeChange = (change: Partial<AddressChange>) =>
    describeAddressDrift({ ip: '172.30.0.1', isRemoval: false, isOnDevice: false, ...change }, expected)

  it('reports what leaves or enters the device, and what another interface gains or loses', () => {
    expect(describeChange({ isOnDevice: true, isRemoval: true })).toBe('172.30.0.1 is gone from kube-ipvs0')
    expect(describeChange({ isOnDevice: true, ip: '10.9.9.9' })).toBe('10.9.9.9 appeared on kube-ipvs0')
    expect(describeChange({ isRemoval: true, ip: '192.0.2.1' })).toBe('192.0.2.1 is free for kube-ipvs0')
    expect(describeChange({})).toBe('another interface has 172.30.0.1')
  })

  it('ignores all other changes', () => {
    expect(describeChange({ isOnDevice: true })).toBe('')
    expect(describeChange({ isOnDevice: true, isRemoval: true, ip: '10.9.9.9' })).toBe('')
    expect(describeChange({ isRemoval: true })).toBe('')
    expect(describeChange({ ip: '10.9.9.9' })).toBe('')
  })
})

describe('sets', () => {
  it('reports a missing set and a set of another size, but not a kernel that does not tell the size', () => {
    const expected = new Map([['KUBE-CLUSTER-IP', 2]])
    expect(describeSetDrift(expected, [{ name: 'KUBE-CLUSTER-IP', elements: 2 }, { name: 'OTHER' }])).toBe('')
    expect(describeSetDrift(expected, [{ name: 'KUBE-CLUSTER-IP' }])).toBe('')
    expect(describeSetDrift(expected, [])).toBe('ipset KUBE-CLUSTER-IP is gone')
    expect(describeSetDrift(expected, [{ name: 'KUBE-CLUSTER-IP', elements: 1 }])).toBe(
      'ipset KUBE-CLUSTER-IP has 1 members instead of 2',
    )
  })
})

describe('rules', () => {
  const nothing = { nat: [], filter: [], mangle: [] }
  const written = composeRules(view())
  /** The programs print jumps as appended rules, and other rules in another form than they got them. */
  const printed = addMissingJumps(written, nothing)
    .replaceAll(/^-I (\S+) 1/gm, '-A $1')
    .replaceAll('-m conntrack --ctstate', '-m state --state')
  const saved = findOwnRules(printed)
  const changed = { ...saved, nat: saved.nat.map((line) => line.replace('127.0.0.0/8', '127.0.0.0/9')) }

  it('are unknown before the first write', () => {
    expect(new RuleDrift().isUnchanged(saved)).toBe(false)
  })

  it('are compared by number at first, and by every character from then on', () => {
    const drift = new RuleDrift()
    drift.expect(written)
    expect(drift.isCompared).toBe(false)
    expect(drift.isUnchanged(saved)).toBe(true)
    expect(drift.isCompared).toBe(true)
    expect(drift.isUnchanged(changed)).toBe(false)
    expect(drift.isUnchanged(saved)).toBe(true)
  })

  it('are taken as they are after the sixth write that does not become what was expected', () => {
    const drift = new RuleDrift()
    const short = { ...saved, nat: saved.nat.slice(0, -1) }
    for (let write = 0; write < 5; write++) {
      drift.forget()
      drift.expect(written)
      expect(drift.isUnchanged(short)).toBe(false)
    }
    drift.expect(written)
    expect(drift.isUnchanged(short)).toBe(true)
  })
})

describe('servers', () => {
  const server: VirtualServer = {
    family: 4,
    protocol: 'tcp',
    ip: '172.30.0.41',
    port: 80,
    scheduler: 'rr',
    flags: 0,
    timeout: 0,
  }
  const destination = { ip: '10.0.0.1', port: 80, weight: 1 }
  const expected = { server, destinations: new Map([['10.0.0.1:80', destination]]) }

  it('are unchanged only with the same settings, destinations and weights', () => {
    expect(isServerUnchanged(expected, server, [destination])).toBe(true)
    expect(isServerUnchanged(expected, { ...server, scheduler: 'sh' }, [destination])).toBe(false)
    expect(isServerUnchanged(expected, server, [])).toBe(false)
    expect(isServerUnchanged(expected, server, [{ ...destination, weight: 0 }])).toBe(false)
  })
})

describe('checks', () => {
  function start(findings: string[]) {
    const clock = new FakeClock()
    const reports: string[] = []
    const mutex = new Mutex()
    const context = { family: 4, node: view(), log: silentLogger, clock, onDrift: (by: string) => reports.push(by) }
    const drift = new DriftChecks({
      context: { ...context, family: 4 },
      mutex,
      syncPeriodMs: 30_000,
      checkMs: 500,
      sweep: async () => undefined,
      checks: [async () => findings.shift() ?? ''],
    })
    drift.noteFullRead(clock.monotonic())
    drift.start()
    return { clock, reports, mutex, drift }
  }

  it('report a change once, until everything was read again', async () => {
    const { clock, reports, drift } = start(['', 'a set is gone', 'a set is gone'])
    await clock.advance(500)
    expect([reports, drift.isDue]).toEqual([[], false])
    await clock.advance(500)
    expect([reports, drift.isDue]).toEqual([['another program (a set is gone)'], true])
    await clock.advance(500)
    expect(reports).toHaveLength(1)
    drift.noteFullRead(clock.monotonic())
    await clock.advance(500)
    expect(reports).toHaveLength(2)
    drift.stop()
  })

  it('do not run during a sync', async () => {
    const { clock, reports, mutex, drift } = start(['changed'])
    let finish = () => {}
    const sync = mutex.run(() => new Promise<void>((resolve) => (finish = resolve)))
    await clock.advance(2000)
    expect(reports).toEqual([])
    finish()
    await sync
    await clock.advance(500)
    expect(reports).toEqual(['another program (changed)'])
    drift.stop()
  })

  it('ask for a full read after the sync period, or after a hundred times what a read takes', async () => {
    const { clock, drift } = start([])
    await clock.advance(30_001)
    expect(drift.isDue).toBe(true)
    const startedAt = clock.monotonic()
    await clock.advance(1000)
    drift.noteFullRead(startedAt)
    await clock.advance(90_000)
    expect(drift.isDue).toBe(false)
    await clock.advance(20_000)
    expect(drift.isDue).toBe(true)
    drift.stop()
  })
})
