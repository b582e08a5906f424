// Connections to a pod that vanished without a word: their clients get a reset, beside kube-proxy, with which they hang. Real sockets.

import dgram from 'node:dgram'
import type { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { clusterIp, ipv6, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { hasKubeProxy, WholeProxy, type WholeProxyOptions } from './whole-proxy.ts'

/** How long a client of kube-proxy is watched. It would hang for a quarter of an hour. */
const hangMs = 8_000

interface Scene {
  readonly network: NodeNetwork
  readonly api: WatchedApi
  readonly proxy: WholeProxy
  /** Sets the endpoints: those of a pod that is gone are not given. */
  setEndpoints(states: Readonly<Record<string, 'ready' | 'unready' | 'terminating'>>): void
}

type Start = (annotation: string | undefined, more?: Partial<WholeProxyOptions>) => Promise<Scene>

/** Runs a test with scenes of its own, which are removed at its end: tests run at the same time. */
const withScenes = (test: (start: Start) => Promise<void>) => async () => {
  const scenes: Scene[] = []
  try {
    await test(async (...given) => {
      const scene = await startScene(...given)
      scenes.push(scene)
      await scene.proxy.waitUntilSynced()
      return scene
    })
  } finally {
    for (const { proxy, api, network } of scenes) {
      await proxy.stop('SIGKILL')
      api.close()
      await network.close()
    }
  }
}

const both = { [podIps[0]]: 'ready', [podIps[1]]: 'ready' } as const

/** The slices of both families, in which the same pods are in the same states. */
function slices(states: Readonly<Record<string, string>>): readonly Item[] {
  return ([4, 6] as const).map((family) => {
    const name = family === 4 ? 'ns1/web' : 'ns1/web#six'
    const made = expand({ slice: name, ports: ['http 8080/tcp', 'dns 5353/udp'], endpoints: [] }, family)
    const endpoints = Object.entries(states).map(([ip, state]) => ({
      addresses: [family === 4 ? ip : ipv6.podIps[podIps.indexOf(ip as (typeof podIps)[number])]],
      nodeName,
      conditions: { ready: state === 'ready', serving: state === 'ready', terminating: state === 'terminating' },
    }))
    return { ...made, addressType: family === 4 ? 'IPv4' : 'IPv6', endpoints } as unknown as Item
  })
}

async function startScene(annotation: string | undefined, more: Partial<WholeProxyOptions> = {}): Promise<Scene> {
  const network = await NodeNetwork.create()
  const api = await WatchedApi.listen(network.node, 8001)
  const service = expand(
    {
      service: 'ns1/web',
      type: 'NodePort',
      clusterIP: [clusterIp, ipv6.clusterIp],
      ports: ['http 80/tcp 30080', 'dns 53/udp 30053'],
    },
    0,
  ) as unknown as Item & { metadata: { annotations?: Record<string, string> } }
  if (annotation !== undefined) service.metadata.annotations = { 'sluice/reset-connections': annotation }
  const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
  api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status } as Item)
  api.put(service, ...slices(both))
  const proxy = await WholeProxy.start({ network, api, mode: 'nftables', ...more })
  return { network, api, proxy, setEndpoints: (states) => api.put(...slices(states)) }
}

/** A connection, its pod, and how it ended. */
class Client {
  readonly socket: Socket
  readonly pod: 0 | 1
  ended = ''

  constructor(socket: Socket, answer: string) {
    this.socket = socket
    this.pod = answer === podIps[0] || answer === ipv6.podIps[0] ? 0 : 1
    socket.on('error', (error: NodeJS.ErrnoException) => {
      this.ended = error.code ?? 'error'
    })
    socket.on('close', () => {
      this.ended ||= 'closed'
    })
  }

  static async dial({ network }: Scene, ip: string = clusterIp, port = 80, from = network.client): Promise<Client> {
    const { answer, socket } = await network.dial(ip, port, undefined, from)
    expect([...podIps, ...ipv6.podIps]).toContain(answer)
    return new Client(socket, answer)
  }
}

/** The pod vanishes without a FIN, then its endpoint goes. */
async function vanish({ network, setEndpoints }: Scene, pod: 0 | 1): Promise<void> {
  await network.setLink(pod, 'down')
  setEndpoints({ [podIps[1 - pod] as string]: 'ready' })
}

async function tracks({ network }: Scene, pod: 0 | 1): Promise<boolean> {
  const list = await network.run('(conntrack -L -p tcp; conntrack -f ipv6 -L -p tcp) 2>/dev/null')
  return [podIps[pod], ipv6.podIps[pod]].some((ip) => list.includes(`src=${ip} `))
}

describe.concurrent('a client of a pod that vanished', () => {
  it.each(['nftables', 'iptables'])('gets a reset at its next packet in %s mode', (mode) =>
    withScenes(async (start) => {
      const scene = await start('500ms', { mode })
      const clients = [await Client.dial(scene), await Client.dial(scene, nodeIp, 30080)]
      if (mode === 'nftables') clients.push(await Client.dial(scene, ipv6.clusterIp))
      for (const client of clients) {
        await vanish(scene, client.pod)
        client.socket.write('more\n')
        await until('the client gets a reset', () => client.ended === 'ECONNRESET', { limitMs: 60_000 })
        await until('the tracking entry is gone', async () => !(await tracks(scene, client.pod)))
        scene.setEndpoints(both)
        await scene.network.setLink(client.pod, 'up')
      }
      const count = new RegExp(`sluice_reset_connections_total\\{protocol="tcp"\\} ${clients.length}`)
      expect(await scene.proxy.metrics()).toMatch(count)
    })(),
  )

  // Nothing of the client reaches the rules: the kernel ends its socket.
  it.each([clusterIp, ipv6.clusterIp])('gets an error without sending anything if it is on the node (%s)', (ip) =>
    withScenes(async (start) => {
      const scene = await start('500ms')
      const { node } = scene.network
      const clients: Client[] = []
      while (new Set(clients.map(({ pod }) => pod)).size < 2) {
        clients.push(await Client.dial(scene, ip, 80, node))
      }
      const [lost, kept] = [0, 1].map((pod) => clients.filter((client) => client.pod === pod))
      await vanish(scene, 0)
      await until('their sockets end', () => lost?.every(({ ended }) => ended === 'ECONNABORTED'))
      expect(kept?.map(({ ended }) => ended)).toEqual(kept?.map(() => ''))
    })(),
  )

  it(
    'hangs without the annotation, and with kube-proxy',
    withScenes(async (start) => {
      const scenes = [await start(undefined)]
      if (hasKubeProxy) scenes.push(await start('500ms', { program: 'kube-proxy' }))
      const clients = await Promise.all(scenes.map((scene) => Client.dial(scene)))
      for (const [i, scene] of scenes.entries()) {
        await vanish(scene, (clients[i] as Client).pod)
        clients[i]?.socket.write('more\n')
      }
      await delay(hangMs)
      expect(clients.map(({ ended }) => ended)).toEqual(clients.map(() => ''))
    }),
  )

  it(
    'connections to pods that are unready or terminate, and to those that live, stay',
    withScenes(async (start) => {
      const scene = await start('100ms')
      const clients: Client[] = []
      while (new Set(clients.map(({ pod }) => pod)).size < 2) clients.push(await Client.dial(scene))
      for (const state of ['unready', 'terminating'] as const) {
        scene.setEndpoints({ ...both, [podIps[0]]: state })
        await delay(700)
        for (const { socket } of clients) socket.write('more\n')
        await delay(300)
        expect(clients.map(({ ended }) => ended)).toEqual(clients.map(() => ''))
      }
      // Its address leaves the slices: its connections end, those of the other pod do not.
      scene.setEndpoints({ [podIps[1]]: 'ready' })
      const lost = clients.filter(({ pod }) => pod === 0)
      await until('the connections are found', async () => (await scene.proxy.metrics()).includes('protocol="tcp"'))
      for (const { socket } of clients) socket.write('more\n')
      await until('they end', () => lost.every(({ ended }) => ended === 'ECONNRESET'))
      expect(clients.filter(({ pod }) => pod === 1).every(({ ended }) => ended === '')).toBe(true)
      // The table goes with its owner, however that ends.
      expect(await scene.network.run('nft list tables')).toContain('sluice-resets')
      await scene.proxy.stop('SIGKILL')
      expect(await scene.network.run('nft list tables')).not.toContain('sluice-resets')
    }),
  )

  it(
    'a connected UDP socket gets one error, then answers of another pod',
    withScenes(async (start) => {
      const scene = await start('300ms')
      const { network, setEndpoints } = scene
      const servers = podIps.map((ip, i) => {
        const server = dgram.createSocket('udp4')
        server.on('message', (_, from) => server.send(ip, from.port, from.address))
        server.bind({ fd: network.pod(i as 0 | 1).openSocket('udp', ip, 5353) })
        return server
      })
      const socket = dgram.createSocket('udp4')
      const got: string[] = []
      socket.on('message', (text) => got.push(String(text)))
      socket.on('error', (error: NodeJS.ErrnoException) => got.push(error.code ?? 'error'))
      socket.bind({ fd: network.client.openSocket('udp', '0.0.0.0', 0) })
      await new Promise<void>((resolve) => socket.connect(53, clusterIp, resolve))
      try {
        socket.send('hello')
        await until('a pod answers', () => got.length === 1)
        const first = got[0] as string
        const other = podIps[first === podIps[0] ? 1 : 0] as string
        setEndpoints({ [other]: 'ready' })
        await until('the flow is found', async () => (await scene.proxy.metrics()).includes('protocol="udp"'))
        socket.send('again')
        await until('there is an error', () => got.length === 2)
        expect(got[1]).toBe('ECONNREFUSED')
        socket.send('once more')
        await until('the other pod answers', () => got.includes(other))
      } finally {
        socket.close()
        for (const server of servers) server.close()
      }
    }),
  )
})
