// Endpoints that die under load are taken out of the choice and come back: real connections, the whole program, failures made real.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import { clusterIp, ipv6, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

let network: NodeNetwork
let api: FixedApi
let folder: string
let proxy: WholeProxy

beforeEach(async () => {
  network = await NodeNetwork.create()
  folder = mkdtempSync(join(tmpdir(), 'sluice-outliers-'))
  const settings = 'outliers:\n  interval: 2s\n'
  writeFileSync(join(folder, 'sluice.yaml'), `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\n${settings}`)
})

afterEach(async () => {
  await proxy.stop('SIGKILL')
  api.close()
  await network.close()
  rmSync(folder, { recursive: true, force: true })
})

interface Addresses {
  readonly clusterIp: string
  readonly podIps: readonly string[]
}

const ipv4: Addresses = { clusterIp, podIps }

function objects(annotation: string | undefined, affinity: boolean, addresses: Addresses): readonly Manifest[] {
  const extra = affinity ? { affinity: 600 } : {}
  const service = expand({ service: 'ns1/web', clusterIP: addresses.clusterIp, ports: ['http 80/tcp'], ...extra }, 0)
  const endpoints = addresses.podIps.map((ip) => `${ip} remote`)
  const slice = expand({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints }, 1)
  const { metadata } = service as unknown as { metadata: Record<string, unknown> }
  if (annotation !== undefined) metadata.annotations = { 'sluice/outlier-ejection': annotation }
  return [service, slice]
}

async function start(
  annotation: string | undefined,
  { affinity = false, mode = 'nftables' as Mode, addresses = ipv4 } = {},
): Promise<void> {
  api = await serveObjects(network.node, nodeName, nodeIp, objects(annotation, affinity, addresses))
  const flags = [`--sluice-config=${join(folder, 'sluice.yaml')}`]
  proxy = await WholeProxy.start({ network, api, mode, flags })
  await proxy.waitUntilSynced()
}

/** Opens connections one after the other without waiting for them. Returns the answers. */
async function dialMany(count: number, ip = clusterIp): Promise<readonly string[]> {
  const answers: Promise<string>[] = []
  for (let i = 0; i < count; i++) {
    answers.push(network.ask(ip, 80, 2_000))
    await delay(40)
  }
  return Promise.all(answers)
}

const answering = async () => [...new Set(await dialMany(25))].sort()

/** A client that is refused once may see only the other endpoint before this one is ejected: more connections decide. */
const metricsUnderLoad = async () => {
  await answering()
  return proxy.metrics()
}

const faults: readonly [string, () => Promise<unknown>, () => Promise<unknown>][] = [
  [
    'drops every packet',
    () =>
      network
        .pod(1)
        .exec('sh', [
          '-c',
          'nft add table inet f; nft add chain inet f c "{ type filter hook input priority 0; policy drop; }"',
        ]),
    () => network.pod(1).exec('nft', ['flush', 'ruleset']),
  ],
  [
    'refuses connections',
    () =>
      network
        .pod(1)
        .exec('sh', [
          '-c',
          'nft add table ip f; nft add chain ip f c "{ type filter hook input priority 0; }"; nft add rule ip f c tcp dport 8080 reject with tcp reset',
        ]),
    () => network.pod(1).exec('nft', ['flush', 'ruleset']),
  ],
  ['has lost its link', () => network.setLink(1, 'down'), () => network.setLink(1, 'up')],
]

describe('with the annotation', () => {
  it.each(faults)(
    'an endpoint that %s gets no more connections, and comes back when it answers',
    async (_, fail, heal) => {
      await start('on')
      expect(await answering()).toEqual([...podIps])
      await fail()
      await expect.poll(answering, { timeout: 60_000 }).toEqual([podIps[0]])
      await expect.poll(metricsUnderLoad, { timeout: 60_000 }).toMatch(/sluice_ejected_endpoints 1/)
      expect(proxy.log).toContain(`${podIps[1]}:8080`)
      await heal()
      await expect.poll(answering, { timeout: 90_000 }).toEqual([...podIps])
      await expect.poll(() => proxy.metrics(), { timeout: 20_000 }).toMatch(/sluice_ejected_endpoints 0/)
    },
  )

  // In userspace mode the relay reports the connections, and tries another endpoint for the same client: no client sees a failure.
  it.each([
    ['iptables', 1],
    ['userspace', 0],
  ] as const)('in %s mode, too (fault %i)', async (mode, index) => {
    const [, fail, heal] = faults[index] as (typeof faults)[number]
    await start('on', { mode })
    expect(await answering()).toEqual([...podIps])
    await fail()
    await expect.poll(answering, { timeout: 60_000 }).toEqual([podIps[0]])
    await expect.poll(metricsUnderLoad, { timeout: 60_000 }).toMatch(/sluice_ejected_endpoints 1/)
    expect(proxy.log).toMatch(new RegExp(`${podIps[1]}:8080 \\(\\d+ connections in a row failed, the last was`))
    await heal()
    await expect.poll(answering, { timeout: 90_000 }).toEqual([...podIps])
    await expect.poll(() => proxy.metrics(), { timeout: 20_000 }).toMatch(/sluice_ejected_endpoints 0/)
  })

  it('in IPv6, too', async () => {
    await start('on', { addresses: ipv6 })
    const answering6 = async () => [...new Set(await dialMany(25, ipv6.clusterIp))].sort()
    await expect.poll(answering6, { timeout: 60_000 }).toEqual([...ipv6.podIps])
    await faults[0]?.[1]()
    await expect.poll(answering6, { timeout: 60_000 }).toEqual([ipv6.podIps[0]])
    expect(proxy.log).toContain(`[${ipv6.podIps[1]}]:8080`)
    await faults[0]?.[2]()
    await expect.poll(answering6, { timeout: 90_000 }).toEqual([...ipv6.podIps])
  })

  it('session affinity does not stick to an ejected endpoint', async () => {
    await start('on', { affinity: true })
    const [stuck = ''] = await answering()
    const index = podIps.indexOf(stuck as (typeof podIps)[number]) as 0 | 1
    const other = podIps[1 - index] as string
    await network
      .pod(index)
      .exec('sh', [
        '-c',
        'nft add table ip f; nft add chain ip f c "{ type filter hook input priority 0; policy drop; }"',
      ])
    // An ejection needs others that answer. This client has no connection to the other pod by the service, so it dials the pod itself.
    const direct = (async () => {
      for (let i = 0; i < 100; i++) {
        await network.ask(other, 8080, 500)
        await delay(100)
      }
    })()
    await expect.poll(answering, { timeout: 60_000 }).toEqual([other])
    await direct
  })
})

it('without the annotation nothing changes: an endpoint that drops packets keeps its share', async () => {
  await start(undefined)
  expect(await answering()).toEqual([...podIps])
  await faults[0]?.[1]()
  await dialMany(40)
  expect(await answering()).toEqual([podIps[0], 'timeout'])
  expect(await proxy.metrics()).toMatch(/sluice_ejected_endpoints 0|^((?!sluice_ejected_endpoints).)*$/s)
})
