// The kernel's answers are lost at will, as when a receive buffer overflows: the datagram is gone, and recv says ENOBUFS. Transactions and
// dumps fail in every phase; afterwards the table is what the objects want.

import { afterAll, afterEach, beforeAll, beforeEach, expect, it, vi } from 'vitest'
import { ENOBUFS } from '../../src/sys/errno.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { until } from '../support/until.ts'
import { InProcessProxy, scenario } from './in-process-proxy.ts'
import { extras, web } from './web-service.ts'

/** What becomes of the next datagrams: `decides` is asked for each that arrives. */
const losses = vi.hoisted(() => ({ decides: (): boolean => false, count: 0 }))

vi.mock('../../src/sys/libc.ts', async (original) => {
  const real = await original<typeof import('../../src/sys/libc.ts')>()
  return {
    ...real,
    recv: (...args: Parameters<typeof real.recv>) => {
      const length = real.recv(...args)
      if (length < 0 || !losses.decides()) return length
      losses.count++
      return -ENOBUFS
    },
  }
})

let namespace: EnteredNamespace
let proxy: InProcessProxy | undefined

beforeAll(() => {
  namespace = enterNamespace()
})

beforeEach(() => {
  losses.decides = () => false
  losses.count = 0
})

afterEach(async () => {
  losses.decides = () => false
  await proxy?.stop()
  proxy = undefined
  namespace.exec('nft', ['flush', 'ruleset'])
})

afterAll(() => namespace.leave())

const settings = scenario('S1').node.nftables
const ownerless = 'destroy'

async function start(features?: string): Promise<InProcessProxy> {
  proxy = await InProcessProxy.start(settings, { families: [4], ...(features === undefined ? {} : { features }) })
  proxy.put(...web().put)
  proxy.synced()
  return proxy
}

/** The endpoints in the kernel, sorted. */
const endpoints = (): readonly string[] =>
  [...namespace.exec('nft', ['list', 'map', 'ip', 'kube-proxy', 'endpoints']).matchAll(/: (10\.[\d.]+) \. 8?0?80/g)]
    .map((match) => match[1] as string)
    .sort()

/** What the kernel must hold when the extra services are in their turn `turn`. */
function wanted(count: number, turn: number): readonly string[] {
  const own = Array.from({ length: count }, (_, i) => [1, 2, 3].map((n) => `10.200.${i & 255}.${3 * turn + n}`))
  return ['10.180.0.1', '10.180.0.2', ...own.flat()].sort()
}

const untilHeld = (count: number, turn: number): Promise<unknown> =>
  until(`the kernel holds turn ${turn}`, () => String(endpoints()) === String(wanted(count, turn)), { limitMs: 60_000 })

it.each([
  ['a table with an owner', undefined],
  ['a table without an owner', ownerless],
])('transactions whose answers are lost, %s: the table is read and compared', async (_, features) => {
  const one = await start(features)
  await one.settled()
  const failed = () => one.reports.filter(({ ok }) => !ok).length
  for (let turn = 0; turn < 5; turn++) {
    // The first answers after this change are lost, until a sync has failed: the first one may be a notification.
    const before = failed()
    losses.decides = () => failed() === before
    one.put(...extras(20, turn).put)
    await untilHeld(20, turn)
  }
  expect(failed()).toBeGreaterThanOrEqual(5)
  expect(losses.count).toBeGreaterThanOrEqual(5)
})

it('every dump of the first observation is cut at another place: the proxy starts at last', async () => {
  const before = await start()
  before.put(...extras(200).put)
  await untilHeld(200, 0)
  await before.stop()
  // The table is there, so the next proxy reads it. Attempt n loses its nth datagram.
  let attempt = 1
  let received = 0
  losses.decides = () => {
    received++
    if (received < attempt || attempt > 12) return false
    received = 0
    attempt++
    return true
  }
  const next = await start()
  next.put(...extras(200, 1).put)
  await untilHeld(200, 1)
  expect(losses.count).toBeGreaterThan(5)
})

it('a third of all datagrams is lost, also notifications, while objects change: the table is right in the end', async () => {
  const one = await start(ownerless)
  await one.settled()
  let number = 0
  losses.decides = () => (number++ * 7919) % 97 < 32
  for (let turn = 0; turn < 40; turn++) {
    one.put(...extras(30, turn).put)
    if (turn % 10 === 5) namespace.exec('nft', ['delete', 'table', 'ip', 'kube-proxy'])
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
  expect(losses.count).toBeGreaterThan(20)
  losses.decides = () => false
  await untilHeld(30, 39)
})
