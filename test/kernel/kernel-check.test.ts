// Compares what modes with iptables rules have programmed with the kernel, before and after another program has changed it.

import { afterEach, describe, expect, it } from 'vitest'
import type { Backend, Held, Presence } from '../../src/backend/backend.ts'
import { findMode } from '../../src/backend/modes.ts'
import { configFrom } from '../../src/commands/sources/source.ts'
import { makeSettings } from '../../src/daemon/backend-settings.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import type { NodeView } from '../../src/model/types.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { endpoint, everyAddress, view as makeView, service, slice, tcp } from '../support/builders.ts'
import { resolve } from '../support/resolve.ts'

let space: EnteredNamespace | undefined
const closers: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const close of closers.splice(0)) await close()
  space?.leave()
  space = undefined
})

interface Programmed {
  readonly space: EnteredNamespace
  /** The presence of each part, by id. */
  check(): Promise<Readonly<Record<string, Presence>>>
}

async function program(mode: string): Promise<Programmed> {
  space = enterNamespace()
  space.exec('ip', ['link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth1'])
  space.exec('ip', ['addr', 'add', '192.168.5.1/24', 'dev', 'eth0'])
  space.exec('ip', ['link', 'set', 'eth0', 'up'])
  const view: NodeView = makeView({ ip: '192.168.5.1', nodePorts: everyAddress })
  const backend: Backend<Held> = findMode(mode).makeBackend(makeSettings(configFrom(new Map([['mode', mode]]))))
  const record = service({ key: 'ns/svc', type: 'NodePort', ports: [tcp(80, 'p', 30080)] })
  const slices = [slice([endpoint('10.1.0.11'), endpoint('10.1.0.12')], { service: 'ns/svc', name: 'p' })]
  const ports = resolve(record, slices, view)
  const entries = [...backend.base(view), ...ports.flatMap((port) => backend.plan(port, view))]
  const byId = new Map(entries.map((entry) => [entry.id, entry]))
  const signal = AbortSignal.timeout(30_000)
  // Without an engine nobody repairs what the test breaks.
  const target = await backend.open({
    family: 4,
    node: view,
    log: silentLogger,
    clock: systemClock,
    onDrift: () => {},
  })
  closers.push(() => target.close())
  await target.observe(signal)
  const wanted = { size: byId.size, entry: (id: string) => byId.get(id), entries: () => byId.values() }
  expect(await target.apply({ put: entries, drop: [] }, signal, wanted)).toMatchObject({ refused: [] })
  const parts = entries.flatMap((entry) => backend.parts?.(entry) ?? [entry])
  return {
    space,
    async check() {
      const kernel = await backend.openCheck?.(view, signal)
      return Object.fromEntries(parts.map((part) => [part.id, kernel?.presence(part) ?? 'unchecked']))
    },
  }
}

const wrong = (states: Readonly<Record<string, Presence>>) =>
  Object.entries(states).flatMap(([id, state]) => (state === 'present' ? [] : [`${id} ${state}`]))

describe('a check of the kernel', () => {
  it('finds everything that iptables mode has written, and what another program removed', async () => {
    const { space: node, check } = await program('iptables')
    const before = await check()
    expect(Object.keys(before).length).toBeGreaterThan(6)
    expect(wrong(before)).toEqual([])
    const saved = node.exec('iptables-save', ['-t', 'nat'])
    const service = /-A (KUBE-SVC-\w+) .*--probability/.exec(saved)?.[1] as string
    node.exec('iptables', ['-t', 'nat', '-D', service, '1'])
    expect(wrong(await check())).toEqual([`nat ${service} differs`])
    node.exec('iptables', ['-t', 'nat', '-F', 'KUBE-SERVICES'])
    expect(wrong(await check())).toEqual(expect.arrayContaining(['nat rules ns/svc:p/tcp differs', 'nat tail missing']))
    node.exec('iptables', ['-t', 'nat', '-F', 'KUBE-NODEPORTS'])
    expect(wrong(await check())).toContain('nat rules ns/svc:p/tcp missing')
    node.exec('iptables', ['-t', 'nat', '-F', 'POSTROUTING'])
    expect(wrong(await check())).toContain('nat head differs')
  })

  it('finds every portal and socket of userspace mode, and what another program removed', async () => {
    const { space: node, check } = await program('userspace')
    const before = await check()
    expect(Object.keys(before)).toEqual(expect.arrayContaining(['host', 'rules ns/svc:p/tcp', 'ns/svc:p/tcp cluster']))
    expect(wrong(before)).toEqual([])
    node.exec('iptables', ['-t', 'nat', '-F', 'KUBE-PORTALS-HOST'])
    expect(wrong(await check())).toEqual(['rules ns/svc:p/tcp differs'])
    for (const chain of ['KUBE-PORTALS-CONTAINER', 'KUBE-NODEPORT-CONTAINER', 'KUBE-NODEPORT-HOST']) {
      node.exec('iptables', ['-t', 'nat', '-F', chain])
    }
    expect(wrong(await check())).toEqual(['rules ns/svc:p/tcp missing'])
    node.exec('iptables', ['-t', 'nat', '-F', 'OUTPUT'])
    expect(wrong(await check())).toContain('host differs')
  })
})
