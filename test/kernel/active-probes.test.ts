// Endpoints whose probes fail are taken out of the choice before a client has met them: real connections, the whole program, failures made
// real.

import { createServer } from 'node:net'
import { afterEach, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

const closers: (() => Promise<unknown>)[] = []

afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close()
})

function objects(probe: string | undefined): readonly Manifest[] {
  const service = expand({ service: 'ns1/web', clusterIP: clusterIp, ports: ['http 80/tcp'] }, 0)
  const slice = expand({ slice: 'ns1/web', ports: ['http 8081/tcp'], endpoints: podIps.map((ip) => `${ip} remote`) }, 1)
  const { metadata } = service as unknown as { metadata: Record<string, unknown> }
  if (probe !== undefined) metadata.annotations = { 'sluice/probe': probe }
  return [service, slice]
}

/** A node with a network of its own, so that the modes are tried at the same time. */
async function start(mode: Mode, probe: string | undefined) {
  const network = await NodeNetwork.create()
  closers.push(() => network.close())
  const pods = await serveHttp(network)
  const api = await serveObjects(network.node, nodeName, nodeIp, objects(probe))
  closers.push(async () => api.close())
  const proxy = await WholeProxy.start({ network, api, mode })
  closers.push(() => proxy.stop('SIGKILL'))
  await proxy.waitUntilSynced()
  const answering = async () => {
    const answers: Promise<string>[] = []
    for (let i = 0; i < 12; i++) answers.push(network.ask(clusterIp, 80, 2_000))
    return [...new Set(await Promise.all(answers))].sort()
  }
  return { proxy, pods, answering }
}

/** On each pod a server that answers requests of HTTP, and lines with its address; the silent one accepts and never answers. */
async function serveHttp(network: NodeNetwork): Promise<{ silent: number; readonly probes: number[] }> {
  const pods = { silent: -1, probes: [0, 0] }
  for (const [i, ip] of podIps.entries()) {
    const server = createServer((socket) => {
      socket.on('error', () => {})
      socket.on('data', (data) => {
        const isProbe = String(data).startsWith('GET /ready ')
        if (isProbe) pods.probes[i] = (pods.probes[i] as number) + 1
        if (i !== pods.silent) socket.write(isProbe ? 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n' : `${ip}\n`)
      })
    })
    closers.push(async () => server.close())
    const fd = network.pod(i === 0 ? 0 : 1).openSocket('tcp', ip, 8081)
    await new Promise<void>((resolve) => server.listen({ fd }, resolve))
  }
  return pods
}

it('a process that accepts and never answers is taken out by probes alone, and comes back, in three modes', async () => {
  const play = async (mode: Mode) => {
    const { proxy, pods, answering } = await start(mode, 'http:/ready interval=1s timeout=300ms failures=2')
    expect(pods.probes).toEqual([0, 0])
    // Connections make this node a user of the service.
    const probed = async () => {
      expect(await answering()).toEqual([...podIps])
      return Math.min(...pods.probes)
    }
    await expect.poll(probed, { timeout: 60_000 }).toBeGreaterThan(0)
    pods.silent = 1
    // No client connects meanwhile.
    await expect.poll(() => proxy.metrics(), { timeout: 60_000 }).toMatch(/sluice_ejected_endpoints 1/)
    expect(proxy.log).toContain(`${podIps[1]}:8081 (probe: no answer within 300 ms 2 times)`)
    await expect.poll(answering, { timeout: 30_000 }).toEqual([podIps[0]])
    pods.silent = -1
    await expect.poll(answering, { timeout: 60_000 }).toEqual([...podIps])
    expect(await proxy.metrics()).toMatch(/sluice_probed_endpoints 2/)
  }
  await Promise.all(['nftables', 'iptables', 'userspace'].map(play))
})

it('without the annotation nothing is probed', async () => {
  const { proxy, pods, answering } = await start('nftables', undefined)
  expect(await answering()).toEqual([...podIps])
  expect(pods.probes).toEqual([0, 0])
  expect(await proxy.metrics()).not.toMatch(/sluice_probes_total\{/)
})
