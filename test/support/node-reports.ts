// Builds reports of nodes for tests of the comparison, from services and the versions of their objects.

import { digestFormat, serviceKeyHash } from '../../src/engine/service-digests.ts'
import type { NodeReport, ObjectsSnapshot } from '../../src/inspect/node-report.ts'
import { SetHash } from '../../src/lib/set-hash.ts'
import { SetSketch } from '../../src/lib/set-sketch.ts'

/** A snapshot of services whose objects have these versions. */
export function snapshotOf(at: string, services: Readonly<Record<string, number>>): ObjectsSnapshot {
  const hash = new SetHash()
  const sketch = new SetSketch()
  for (const [service, content] of Object.entries(services)) {
    const element = { key: serviceKeyHash(service), content }
    sketch.add(element)
    hash.extend(`${element.key} ${element.content}`)
    hash.finish()
  }
  return { at, hash: hash.toString(), sketch: sketch.toString() }
}

export const nodeReport = (node: string, fields: Partial<NodeReport> = {}): NodeReport => ({
  apiVersion: 'sluice/v1',
  kind: 'NodeReport',
  node,
  version: '0.1.0',
  mode: 'nftables',
  startedAt: '2026-01-01T00:00:00Z',
  reportedAt: '2026-01-01T10:00:10Z',
  intervalSeconds: 60,
  families: [{ family: 4, stateHash: '000000010000000200000003', lastSync: '2026-01-01T09:59:00Z', error: '' }],
  services: 2,
  failedSyncs: 0,
  quarantined: 0,
  conflicts: 0,
  drifts: 0,
  invalidManifests: 0,
  apiServerSilentSeconds: 1,
  digestFormat,
  snapshots: [],
  ...fields,
})
