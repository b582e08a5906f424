// When the data path counts as broken, and what the canary puts into the store; its packets are in test/kernel/canary.test.ts.

import { afterEach, expect, it } from 'vitest'
import { loadSluiceConfig } from '../../../src/config/sluice-config.ts'
import { askCanary, listenCanary } from '../../../src/daemon/canary/canary-sockets.ts'
import { CanaryVerdict } from '../../../src/daemon/canary/canary-verdict.ts'
import { ServiceDigests } from '../../../src/engine/service-digests.ts'
import { canaryService, makeCanaryService, makeCanarySlice } from '../../../src/model/canary-records.ts'
import { resolvePorts } from '../../../src/model/resolve.ts'
import { EngineHarness, service, slice, view } from '../../engine/engine-harness.ts'

const closers: (() => void)[] = []
afterEach(() => {
  for (const close of closers.splice(0)) close()
})

it('the path is broken after failures in a row, and works again after one success', () => {
  const verdict = new CanaryVerdict(() => 3)
  const changes = ['x', 'x', undefined, 'x', 'x', 'x', 'y', undefined].map((failure) => verdict.note(failure))
  expect(changes).toEqual([false, false, false, false, false, true, false, true])
  expect(verdict.reason).toBeUndefined()
})

it('its records give one frontend with one endpoint', () => {
  const record = makeCanaryService(['10.96.255.254'])
  const [port] = [...resolvePorts(record, [makeCanarySlice('n', { ip: '127.0.0.1', port: 4711 })], view(4))]
  expect(port?.frontends.map(({ ip, port: number }) => `${ip}:${number}`)).toEqual(['10.96.255.254:7'])
  expect(port?.cluster.map(({ ip, port: number }) => `${ip}:${number}`)).toEqual(['127.0.0.1:4711'])
})

it('loses its address to a Service of the API, and is not compared between nodes', async () => {
  const harness = new EngineHarness()
  const { services, slices } = harness.engine.store
  services.put(canaryService, makeCanaryService(['10.96.0.10']))
  slices.put('s', makeCanarySlice('n', { ip: '127.0.0.1', port: 4711 }))
  const other = service('ns/web', {
    clusterIps: ['10.96.0.10'],
    ports: [{ name: '', protocol: 'tcp', port: 7, nodePort: 0 }],
  })
  await harness.synced(other, slice('ns/web', ['10.1.0.1']))
  expect(harness.engine.conflicts().map(({ loser, winner }) => [loser, winner])).toEqual([[canaryService, 'ns/web']])
  const seen: unknown[] = []
  const steps = new ServiceDigests().list(harness.engine.store, [4], {
    visit: (one) => seen.push(one),
    isApplied: () => true,
  })
  for (const _ of steps) void _
  expect(seen).toHaveLength(1)
})

it('a listener says who it is, and nobody answers when it is closed', async () => {
  const listener = await listenCanary('127.0.0.1', 'canary 1')
  closers.push(() => listener.close())
  const now = () => performance.now()
  expect(await askCanary('127.0.0.1', listener.port, now)).toEqual({ name: 'canary 1', connectMs: expect.any(Number) })
  listener.close()
  expect(await askCanary('127.0.0.1', listener.port, now)).toEqual({ failure: 'ECONNREFUSED' })
})

it.each([['["10.0.0.1", "10.0.0.2"]'], ['["web"]'], ['["010.0.0.1"]']])('refuses the addresses %s', (list) => {
  const text = `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\ncanary:\n  addresses: ${list}\n`
  expect(() => loadSluiceConfig('f', text)).toThrow(/canary.addresses: .*IP addresses, at most one per family/)
})
