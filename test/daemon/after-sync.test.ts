import { expect, it } from 'vitest'
import { startAfterSync } from '../../src/daemon/after-sync.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { systemClock as clock } from '../../src/lib/time.ts'

type Options = Parameters<typeof startAfterSync>[0]

const report = {
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

/** Whether flows are looked for after a sync that changed UDP endpoints. */
async function looks(backend: Options['backend'], patienceMs: number): Promise<boolean> {
  const journal = new SyncJournal({ log })
  let tell: (looked: boolean) => void = () => {}
  const looked = new Promise<boolean>((resolve) => {
    tell = resolve
  })
  const parts = {
    engine: { health: () => new Map(), udpPorts: () => [] },
    views: { addresses: [], of: () => ({ nodePorts: { all: true, addresses: [] } }) },
    health: { updated() {}, queued() {} },
    metrics: { conntrack: () => tell(true) },
    recorder: { record() {} },
  }
  const follow = startAfterSync({ ...parts, journal, backend, name: 'node', clock, log } as unknown as Options)
  journal.report(report)
  const timer = setTimeout(() => tell(false), patienceMs)
  const answer = await looked
  clearTimeout(timer)
  await follow.close()
  return answer
}

it('looks for stale UDP flows where the kernel translates, and nowhere else: without rights it could not even ask', async () => {
  expect(await looks({}, 10_000)).toBe(true)
  expect(await looks({ untracked: true }, 50)).toBe(false)
})
