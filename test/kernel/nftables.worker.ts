// A proxy in its own process, which tests can kill: the real engine, backend and conntrack cleaner. Its parent sends it orders.

import { ConntrackCleaner } from '../../src/engine/flows/stale-flows.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { ConntrackTable } from '../../src/sys/netlink/conntrack.ts'
import type { Manifest, NodeSettings } from '../scenarios/format.ts'
import { InProcessProxy } from './in-process-proxy.ts'

export type Order =
  | { readonly do: 'start'; readonly settings: NodeSettings; readonly manifests: readonly Manifest[] }
  /** Makes one change after another until the process is killed, each when the last one is in the kernel. */
  | { readonly do: 'churn'; readonly rounds: readonly (readonly Manifest[])[] }
  | { readonly do: 'stop' }
  /** Makes the changes one after another, each when the last one is in the kernel, and answers at the end. */
  | { readonly do: 'change'; readonly rounds: readonly (readonly Manifest[])[] }
  | { readonly do: 'count' }

let proxy: InProcessProxy | undefined

process.on('message', (order: Order) => {
  obey(order).then(
    (answer) => process.send?.(answer),
    (error) => process.send?.({ error: String(error) }),
  )
})
process.on('disconnect', () => process.exit())

async function obey(order: Order): Promise<object> {
  if (order.do === 'start') {
    proxy = await InProcessProxy.start(order.settings, { families: [4], log })
    const { engine } = proxy
    const cleaner = new ConntrackCleaner({
      table: new ConntrackTable(),
      ports: (family) => engine.udpPorts(family),
      nodeAddresses: () => [],
      clock: systemClock,
      log,
    })
    proxy.put(...order.manifests)
    proxy.synced()
    await proxy.settled()
    await cleaner.clean(4)
    return { started: true, changes: proxy.reports.reduce((sum, { put, dropped }) => sum + put + dropped, 0) }
  }
  const running = proxy as InProcessProxy
  if (order.do === 'count') {
    const ports = (await running.backend.counters?.()) ?? []
    return { ports: ports.map((one) => ({ ...one, endpoints: Object.fromEntries(one.endpoints) })) }
  }
  if (order.do === 'change') {
    for (const round of order.rounds) {
      const since = running.reports.length
      running.put(...round)
      await running.settled(since)
    }
    return { changed: order.rounds.length }
  }
  if (order.do === 'churn') {
    for (let i = 0; ; i++) {
      const since = running.reports.length
      running.put(...(order.rounds[i % order.rounds.length] as readonly Manifest[]))
      await running.settled(since)
    }
  }
  await running.stop()
  return { stopped: true }
}
