// At a cold start the services that a node cannot work without are in the first transaction, and nothing else is planned before it.

import { describe, expect, it } from 'vitest'
import { isCritical } from '../../src/model/critical.ts'
import { resolvePorts } from '../../src/model/resolve.ts'
import * as builders from '../support/builders.ts'
import { EngineHarness, service, slice } from './engine-harness.ts'

const critical = ['default/kubernetes', 'kube-system/kube-dns']

function makeHarness(others: number) {
  const resolved: string[] = []
  const harness = new EngineHarness({
    resolve(record, slices, node) {
      resolved.push(`${record.key} ${kernel().applies.length}`)
      return resolvePorts(record, slices, node)
    },
  })
  const kernel = () => harness.kernels.get(4) as NonNullable<ReturnType<typeof harness.kernels.get>>
  const keys = [...Array.from({ length: others }, (_, i) => `ns${i % 7}/svc-${i}`), ...critical]
  for (const [i, key] of keys.entries()) {
    harness.engine.store.services.put(key, service(key, { clusterIps: [`10.96.${i >> 8}.${i & 255}`] }))
    harness.engine.store.slices.put(`${key}-1`, slice(key, [`10.1.${i >> 8}.${i & 255}`]))
  }
  return { harness, kernel: kernel(), resolved, last: keys.length }
}

describe('a cold start', () => {
  it.each([0, 10, 2000])('writes critical services in the first transaction, with %i others', async (others) => {
    const { harness, kernel, resolved, last } = makeHarness(others)
    await harness.synced()
    await harness.clock.advance(5_000)
    const [first] = kernel.applies
    const frontends = first?.put.filter((id) => id.startsWith('frontend'))
    const address = (i: number) => `10.96.${i >> 8}.${i & 255}`
    expect(frontends?.length).toBe(2)
    for (const i of [last - 2, last - 1]) expect(frontends?.some((id) => id.includes(`${address(i)}:80`))).toBe(true)
    // Nothing that grows with the cluster is planned before that.
    expect(resolved.filter((one) => one.endsWith(' 0')).map((one) => one.split(' ')[0])).toEqual(critical)
    expect(kernel.ids().filter((id) => id.startsWith('frontend')).length).toBe(others + 2)
  })

  it('is as complete as without critical services: a second sync changes nothing', async () => {
    const { harness, kernel } = makeHarness(50)
    await harness.synced()
    await harness.clock.advance(5_000)
    const before = kernel.content()
    harness.engine.requestSync(4, { full: true })
    await harness.clock.advance(5_000)
    expect(kernel.content()).toEqual(before)
    for (const [id, writes] of kernel.writes) expect(`${id} ${writes}`).toBe(`${id} 1`)
  })

  it('leaves what a previous process wrote until all successors are planned', async () => {
    const { harness, kernel } = makeHarness(10)
    kernel.tamper('frontend 10.96.0.1:80/tcp', 'old', { silent: true })
    kernel.drifted = false
    await harness.synced()
    await harness.clock.advance(5_000)
    expect(kernel.applies.length).toBe(1)
  })
})

describe('a critical service', () => {
  it.each<[string, number, boolean]>([
    ['default/kubernetes', 443, true],
    ['kube-system/kube-dns', 53, true],
    ['kube-system/coredns', 5353, true],
    ['kube-system/node-local-dns-upstream', 53, true],
    ['kube-system/metrics-server', 443, false],
    ['default/kube-dns', 53, false],
    ['other/kubernetes', 443, false],
  ])('%s with port %i: %s', (key, port, expected) => {
    expect(isCritical(service(key, { ports: [builders.tcp(port, 'p')] }))).toBe(expected)
  })
})
