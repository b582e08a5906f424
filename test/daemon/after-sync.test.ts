import { expect, it } from 'vitest'
import { startAfterSync } from '../../src/daemon/after-sync.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import type { InvalidManifest } from '../../src/http/admin.ts'
import type { Occurrence } from '../../src/kube/events.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { systemClock as clock } from '../../src/lib/time.ts'

type Options = Parameters<typeof startAfterSync>[0]

const syncReport = {
  backend: 'userspace',
  family: 4,
  startedAt: 0,
  causes: [],
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

it('records an Event for each invalid file each time the files were read, so that it stays until the file is mended', async () => {
  const listeners = new Set<(problems: readonly InvalidManifest[]) => void>()
  const recorded: Occurrence[] = []
  const problem = (file: string) => ({ file, line: 31, field: 'spec.ports[0].port', message: 'must be at most 65535' })
  const parts = {
    engine: { health: () => new Map(), udpPorts: () => [] },
    views: { addresses: [], get: () => ({ nodePorts: { all: true, addresses: [] } }) },
    health: { updated() {}, queued() {} },
    recorder: { record: (occurrence: Occurrence) => recorded.push(occurrence) },
    manifests: {
      problems: () => [],
      subscribe(listener: (problems: readonly InvalidManifest[]) => void) {
        listeners.add(listener)
        listener([problem('web.yaml')])
        return () => void listeners.delete(listener)
      },
    },
    backend: { untracked: true },
    journal: new SyncJournal({ log }),
  }
  const afterSync = startAfterSync({ ...parts, name: 'n1', clock, log } as unknown as Options)
  for (const listener of listeners) listener([problem('web.yaml'), problem('db.yaml')])
  expect(recorded.map(({ reason, note, regarding }) => [reason, note, regarding.fieldPath])).toEqual(
    ['web.yaml', 'web.yaml', 'db.yaml'].map((file) => [
      'InvalidManifest',
      `${file}:31: spec.ports[0].port: must be at most 65535; the objects of its last valid content stay`,
      file,
    ]),
  )
  await afterSync.close()
  expect(listeners.size).toBe(0)
})
