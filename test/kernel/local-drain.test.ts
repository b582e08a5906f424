// A rolling update behind a load balancer, policy Local: real connections through whole proxies on two nodes, kube-proxy's beside ours.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { playRollingUpdate } from './rolling-update.ts'
import { expand } from './web-service.ts'
import { hasKubeProxy, WholeProxy } from './whole-proxy.ts'

describe.concurrent('a rolling update', () => {
  it.each([
    ['nftables', 4],
    ['nftables', 6],
    ['iptables', 4],
    ['userspace', 4],
  ] as const)('loses no connection in %s mode, IPv%i', async (mode, family) => {
    const { made, failed, late, toldAtOnce } = await playRollingUpdate({ mode, family, drain: '30s', limitMs: 8_000 })
    expect(failed).toEqual({})
    expect(toldAtOnce).toBe(true)
    // The balancer did send connections to nodes without endpoints.
    expect(late).toBeGreaterThan(0)
    expect(made).toBeGreaterThan(late)
  })

  it('loses connections without the annotation', async () => {
    const ours = await playRollingUpdate({ mode: 'nftables' })
    expect(ours.failed.timeout).toBeGreaterThan(0)
    expect(ours.toldAtOnce).toBe(true)
  })

  it.skipIf(!hasKubeProxy)('loses connections with kube-proxy', async () => {
    const theirs = await playRollingUpdate({ mode: 'nftables', program: 'kube-proxy' })
    expect(theirs.failed.timeout).toBeGreaterThan(0)
    expect(theirs.toldAtOnce).toBe(true)
  })
})

it('a proxy that is killed while a service drains goes on with it', async () => {
  const network = await NodeNetwork.create()
  const folder = mkdtempSync(join(tmpdir(), 'sluice-drain-'))
  const file = join(folder, 'sluice.yaml')
  writeFileSync(file, `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\nstate:\n  directory: ${folder}/state\n`)
  const api = await WatchedApi.listen(network.node, 8001)
  const put = (...objects: readonly unknown[]) => api.put(...(objects as readonly Item[]))
  const endpoints = (...list: string[]) => expand({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints: list }, 1)
  const start = async () => {
    const proxy = await WholeProxy.start({ network, api, mode: 'nftables', flags: [`--sluice-config=${file}`] })
    await proxy.waitUntilSynced()
    return proxy
  }
  const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
  put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status })
  const service = { service: 'ns1/web', type: 'NodePort', clusterIP: '172.30.0.41', ports: ['http 80/tcp 30080'] }
  const annotations = { 'sluice/local-drain': '10m' }
  put(expand({ ...service, externalTrafficPolicy: 'Local', annotations }, 0))
  put(endpoints(`${podIps[0]} local`, `${podIps[1]} remote`))
  let proxy = await start()
  try {
    const ask = () => network.ask(nodeIp, 30080, 2_000)
    await expect.poll(ask, { timeout: 30_000 }).toBe(podIps[0])
    put(endpoints(`${podIps[1]} remote`))
    await expect.poll(ask, { timeout: 30_000 }).toBe(podIps[1])
    await proxy.stop('SIGKILL')
    proxy = await start()
    // On a slow machine the saved state may serve first, in which the endpoint is still there.
    const metrics = () => proxy.metrics()
    await expect.poll(metrics, { timeout: 30_000 }).toMatch(/^sluice_draining_ports 1$/m)
    expect(await ask()).toBe(podIps[1])
  } finally {
    await proxy.stop('SIGKILL')
    api.close()
    await network.close()
    rmSync(folder, { recursive: true, force: true })
  }
})
