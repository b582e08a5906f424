import { expect, it } from 'vitest'
import { startAfterSync } from '../../src/daemon/after-sync.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { systemClock as clock } from '../../src/lib/time.ts'

type Options = Parameters<typeof startAfterSync>[0]

const syncReport = {
  backend: 'userspace',
  family: 4,
  startedAt: 0,
  durationMs: 1,
  full: true,
  ok: true,
  put: 0,
  dropped: 0,
  held: 0,
  services: [],
  refused: [],
  triggers: [],
  noLocal: { internal: 0, external: 0 },
  noLocalServices: { internal: 0, external: 0 },
  udpChanged: true,
  figures: {},
} satisfies Parameters<SyncJournal['report']>[0]

/** Resolves whether stale flows are searched after a sync that changed UDP endpoints. */
async function searchesFlows(backend: Options['backend'], limitMs: number): Promise<boolean> {
  const journal = new SyncJournal({ log })
  let report: (searched: boolean) => void = () => {}
  const searched = new Promise<boolean>((resolve) => {
    report = resolve
  })
  const parts = {
    engine: { health: () => new Map(), udpPorts: () => [] },
    views: { addresses: [], get: () => ({ nodePorts: { all: true, addresses: [] } }) },
    health: { updated() {}, queued() {} },
    metrics: { conntrack: () => report(true) },
    recorder: { record() {} },
  }
  const afterSync = startAfterSync({ ...parts, journal, backend, name: 'node', clock, log } as unknown as Options)
  journal.report(syncReport)
  const timer = setTimeout(() => report(false), limitMs)
  const answer = await searched
  clearTimeout(timer)
  await afterSync.close()
  return answer
}

it('searches stale UDP flows only where the kernel translates addresses: without privileges the search would fail', async () => {
  expect(await searchesFlows({}, 10_000)).toBe(true)
  expect(await searchesFlows({ untracked: true }, 50)).toBe(false)
})
