// Flows in userspace mode, by real packets: the relays report them, with the client, the address it asked for, the endpoints that were tried,
// the bytes and the end; and they report nothing while nobody looks.

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server, Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { FlowFeed } from '../../src/commands/dashboard/flow-feed.ts'
import { describeCoverage } from '../../src/commands/flows/flow-text.ts'
import { AdminClient } from '../../src/http/admin-client.ts'
import type { FlowCoverage, FlowEvent, FlowQuery } from '../../src/http/admin-flows.ts'
import type { FlowMessage } from '../../src/http/admin-page.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { addressOf, allFlows, closeGently, type FollowedFlows, followFlows } from './followed-flows.ts'
import { privateLock } from './iptables-holdings.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

privateLock()

/** Only the second pod listens on the port of its endpoints. */
const half = '172.30.0.42'
/** Nothing listens there in the pods. */
const refusing = '172.30.0.43'
/** No packet to its endpoint is answered. */
const silent = '172.30.0.44'
/** Has no endpoints. */
const empty = '172.30.0.45'
const dns = '172.30.0.53'
/** No pod listens on the port of its endpoint. */
const deafDns = '172.30.0.54'
const clientIp = '192.168.0.100'
const halfPort = 8082

let network: NodeNetwork
let api: FixedApi
let folder: string
let proxy: WholeProxy
let client: AdminClient
let halfServer: Server
const watches: FollowedFlows[] = []

beforeAll(async () => {
  network = await NodeNetwork.create()
  await network.useFlavour('nft')
  folder = mkdtempSync(join(tmpdir(), 'sluice-relay-flows-'))
  const both = podIps.map((ip) => `${ip} local`)
  api = await serveObjects(network.node, nodeName, nodeIp, [
    expand({ service: 'ns1/web', type: 'NodePort', clusterIP: clusterIp, ports: ['http 80/tcp 30080'] }, 0),
    expand({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints: both }, 1),
    expand({ service: 'ns1/half', clusterIP: half, ports: ['http 80/tcp'] }, 2),
    expand({ slice: 'ns1/half', ports: [`http ${halfPort}/tcp`], endpoints: both }, 3),
    expand({ service: 'ns1/refusing', clusterIP: refusing, ports: ['http 80/tcp'] }, 4),
    expand({ slice: 'ns1/refusing', ports: ['http 9/tcp'], endpoints: both }, 5),
    expand({ service: 'ns1/silent', clusterIP: silent, ports: ['http 80/tcp'] }, 6),
    expand({ slice: 'ns1/silent', ports: ['http 8080/tcp'], endpoints: ['10.180.0.99 local'] }, 7),
    expand({ service: 'ns1/empty', clusterIP: empty, ports: ['http 80/tcp'] }, 8),
    expand({ service: 'ns1/dns', clusterIP: dns, ports: ['dns 53/udp'] }, 9),
    expand({ slice: 'ns1/dns', ports: ['dns 5353/udp'], endpoints: [`${podIps[0]} local`] }, 10),
    expand({ service: 'ns1/deaf', clusterIP: deafDns, ports: ['dns 53/udp'] }, 11),
    expand({ slice: 'ns1/deaf', ports: ['dns 5354/udp'], endpoints: [`${podIps[0]} local`] }, 12),
  ])
  halfServer = createServer((socket) => socket.on('data', () => socket.write(`${podIps[1]}\n`)))
  await new Promise<void>((resolve) =>
    halfServer.listen({ fd: network.pod(1).openSocket('tcp', podIps[1], halfPort) }, resolve),
  )
  const env = { SLUICE_ADMIN_SOCKET: join(folder, 'admin.sock') }
  proxy = await WholeProxy.start({ network, api, mode: 'userspace', env })
  await proxy.waitUntilSynced()
  client = new AdminClient(env.SLUICE_ADMIN_SOCKET)
})

afterAll(async () => {
  halfServer?.close()
  await proxy?.stop('SIGKILL')
  api?.close()
  await network?.close()
  rmSync(folder, { recursive: true, force: true })
})

afterEach(async () => {
  for (const watch of watches.splice(0)) await watch.end()
})

async function follow(query: Partial<FlowQuery> = {}): Promise<FollowedFlows> {
  const watch = await followFlows(client, query)
  watches.push(watch)
  return watch
}

/** The groups of conntrack that sockets of the node listen to. */
async function conntrackListeners(): Promise<number> {
  const lines = (await network.run('cat /proc/net/netlink')).split('\n').slice(1)
  const joined = lines.map((line) => line.trim().split(/\s+/)).filter(([, protocol]) => protocol === '12')
  return joined.filter(([, , , groups]) => (Number.parseInt(groups ?? '0', 16) & 7) !== 0).length
}

describe('the list of open flows', () => {
  it('names the client, the address that it asked for, the endpoint and the bytes', async () => {
    const { socket, answer } = await network.dial(clusterIp, 80)
    const byNodePort = await network.dial(nodeIp, 30_080)
    const { flows, coverage } = await client.flows(allFlows)
    const common = { verdict: 'open', service: 'ns1/web:http', protocol: 'tcp', family: 4, rule: '', endedAt: null }
    expect(flows.find(({ from }) => from === addressOf(socket))).toMatchObject({
      ...{ ...common, to: `${clusterIp}:80`, endpoint: `${answer}:8080` },
      traffic: { bytesIn: 'hello\n'.length, bytesOut: `${answer}\n`.length },
      startedAt: expect.stringMatching(/^\d{4}-/),
    })
    expect(flows.find(({ from }) => from === addressOf(byNodePort.socket))).toMatchObject({
      ...{ ...common, to: `${nodeIp}:30080`, endpoint: `${byNodePort.answer}:8080` },
    })
    expect(coverage).toMatchObject({ sampled: 1, lost: 0, skipped: 0, watchers: 0 })
    expect(coverage.remarks.join(' ')).not.toContain('nf_conntrack_acct')
    await closeGently(socket)
    await closeGently(byNodePort.socket)
  })

  it('selects by service, client and verdict', async () => {
    const { socket } = await network.dial(clusterIp, 80)
    const list = async (query: Partial<FlowQuery>) => {
      const { flows } = await client.flows({ ...allFlows, ...query })
      return flows.map(({ from }) => from)
    }
    const from = addressOf(socket)
    expect(await list({ service: 'ns1/web' })).toContain(from)
    expect(await list({ service: 'ns1/web:http', from: clientIp, verdicts: ['open'] })).toContain(from)
    expect(await list({ from: '192.168.0.0/24' })).toContain(from)
    expect(await list({ service: 'ns1/half' })).toEqual([])
    expect(await list({ from: '10.0.0.0/8' })).toEqual([])
    expect(await list({ verdicts: ['closed'] })).toEqual([])
    await closeGently(socket)
  })

  it('names a client on the node that uses a node port on loopback', async () => {
    const { socket, answer } = await network.dial('127.0.0.1', 30_080, 3000, network.node)
    expect(podIps).toContain(answer)
    const { flows } = await client.flows(allFlows)
    expect(flows.find(({ from }) => from === addressOf(socket))).toMatchObject({
      ...{ to: '127.0.0.1:30080', endpoint: `${answer}:8080`, service: 'ns1/web:http' },
    })
    await closeGently(socket)
  })
})

describe('followed flows', () => {
  it('are those that begin from then on and those that are open; nothing is kept while nobody looks', async () => {
    for (let i = 0; i < 10; i++) {
      const { socket } = await network.dial(clusterIp, 80)
      await closeGently(socket)
    }
    await until('the relay has closed them', async () => (await client.flows(allFlows)).flows.length === 0)
    const { socket: old } = await network.dial(clusterIp, 80)
    expect(await conntrackListeners()).toBe(0)
    const watch = await follow()
    expect(await proxy.metrics()).toContain('sluice_flow_watchers 1')
    await until('the old connection is shown', () => watch.flows.some(({ from }) => from === addressOf(old)))
    const { socket, answer } = await network.dial(clusterIp, 80)
    const from = addressOf(socket)
    await closeGently(socket)
    const flow = await watch.find('closed', `${clusterIp}:80`)
    expect(flow).toMatchObject({
      ...{ from, endpoint: `${answer}:8080`, service: 'ns1/web:http' },
      traffic: { bytesIn: 'hello\n'.length, bytesOut: `${answer}\n`.length },
    })
    expect(Date.parse(flow.endedAt ?? '')).toBeGreaterThanOrEqual(Date.parse(flow.startedAt ?? ''))
    expect(watch.flows.filter(({ id }) => id === flow.id).map(({ verdict }) => verdict)).toEqual(['open', 'closed'])
    // The kernel is asked for single connections, and sends no notifications.
    expect(await conntrackListeners()).toBe(0)
    expect(new Set(watch.flows.map((one) => one.from))).toEqual(new Set([addressOf(old), from]))
    await closeGently(old)
    await until('the end of the old connection is shown', () =>
      watch.flows.some((one) => one.from !== from && one.verdict === 'closed'),
    )
    // What ended is shown as long as someone follows, and then forgotten.
    expect((await client.flows(allFlows)).flows.map(({ verdict }) => verdict)).toEqual(['closed', 'closed'])
    await watches.pop()?.end()
    await until('ended flows are forgotten', async () => (await client.flows(allFlows)).flows.length === 0)
    expect(await proxy.metrics()).toContain('sluice_flow_watchers 0')
  })

  it('end with a reset', async () => {
    const watch = await follow({ verdicts: ['reset'] })
    const { socket } = await network.dial(clusterIp, 80)
    const from = addressOf(socket)
    socket.resetAndDestroy()
    expect(await watch.find('reset', `${clusterIp}:80`)).toMatchObject({ from })
    expect(watch.flows.every(({ verdict }) => verdict === 'reset')).toBe(true)
  })

  it('name the endpoint that refused and the one that the relay took instead', async () => {
    const watch = await follow({ service: 'ns1/half' })
    // The relay takes turns, so one of two clients meets the pod that refuses.
    for (let i = 0; i < 2; i++) {
      const { socket, answer } = await network.dial(half, 80)
      expect(answer).toBe(podIps[1])
      await closeGently(socket)
    }
    const refused = await watch.find('refused', `${half}:80`)
    expect(refused).toMatchObject({ endpoint: `${podIps[0]}:${halfPort}`, service: 'ns1/half:http' })
    await until('the same client is served', () =>
      watch.flows.some(({ from, verdict }) => from === refused.from && verdict === 'closed'),
    )
    const served = watch.flows.filter(({ from, verdict }) => from === refused.from && verdict === 'closed')
    expect(served).toMatchObject([{ endpoint: `${podIps[1]}:${halfPort}`, traffic: { bytesIn: 6, bytesOut: 11 } }])
    expect(served[0]?.id).not.toBe(refused.id)
  })

  it('show every endpoint that failed a client which gets none', async () => {
    const watch = await follow()
    expect(await network.ask(refusing)).toBe('ECONNRESET')
    await network.ask(silent, 80, 500)
    await until('both endpoints are shown', () => {
      const refused = watch.flows.filter(({ to, verdict }) => to === `${refusing}:80` && verdict === 'refused')
      return new Set(refused.map(({ endpoint }) => endpoint)).size === 2
    })
    expect(await watch.find('timed-out', `${silent}:80`)).toMatchObject({ endpoint: '10.180.0.99:8080' })
  })

  it('show a packet that a rule rejects, with the rule', async () => {
    const watch = await follow({ verdicts: ['rejected', 'dropped'] })
    await until('packets are marked', async () => (await network.run('nft list tables')).includes('sluice-flows'))
    expect(await network.ask(empty)).toBe('ECONNREFUSED')
    expect(await watch.find('rejected', `${empty}:80`)).toMatchObject({
      ...{ service: 'ns1/empty:http', endpoint: '', rule: expect.stringContaining('KUBE-PORTALS-FILTER') },
    })
  })

  it('count the datagrams of a UDP client, expire when it is silent, and are refused if no one listens', async () => {
    const watch = await follow()
    const pod = createSocket('udp4').bind({ fd: network.pod(0).openSocket('udp', podIps[0], 5353) })
    pod.on('message', (_, { port, address }) => pod.send('answer', port, address))
    const sender = createSocket('udp4').bind({ fd: network.client.openSocket('udp', clientIp, 0) })
    try {
      sender.send('question?', 53, dns)
      await once(sender, 'message')
      const flow = await watch.find('expired', `${dns}:53`)
      expect(flow).toMatchObject({
        ...{ from: `${clientIp}:${sender.address().port}`, protocol: 'udp', endpoint: `${podIps[0]}:5353` },
        ...{ service: 'ns1/dns:dns', traffic: { packetsIn: 1, bytesIn: 9, packetsOut: 1, bytesOut: 6 } },
      })
      expect(watch.flows.some(({ id, verdict }) => id === flow.id && verdict === 'open')).toBe(true)
      sender.send('anyone?', 53, deafDns)
      expect(await watch.find('refused', `${deafDns}:53`)).toMatchObject({ endpoint: `${podIps[0]}:5354` })
    } finally {
      sender.close()
      pod.close()
    }
  })
})

it('feeds the page of flows, as every mode does', async () => {
  const { socket } = await network.dial(clusterIp, 80)
  const messages: FlowMessage[] = []
  const feed = new FlowFeed(async () => client)
  const leave = feed.subscribe(
    { ...allFlows, service: 'ns1/web' },
    { send: (message) => messages.push(message), end: () => {} },
  )
  try {
    const listed = await until('the page gets the list', () => messages.find(({ kind }) => kind === 'flows'))
    expect(listed).toMatchObject({ flows: [{ from: addressOf(socket), to: `${clusterIp}:80`, verdict: 'open' }] })
    await closeGently(socket)
    await until('the page gets the end', () =>
      messages.some((message) => message.kind === 'flow' && message.flow.verdict === 'closed'),
    )
  } finally {
    leave()
  }
})

it('follows a share of a flood, says how large the share is, and shows the rest of what is open when the flood is over', async () => {
  const count = 600
  const watch = await follow({ service: 'ns1/web' })
  // All clients wait in the queue of the listener until the proxy goes on: so many per second come on a busy machine as well.
  proxy.child.kill('SIGSTOP')
  const sockets: Socket[] = []
  try {
    for (let i = 0; i < count; i++) {
      const socket = new Socket({ fd: network.client.openSocket('tcp', clientIp, 0) })
      sockets.push(socket.on('error', () => {}))
      socket.connect({ host: clusterIp, port: 80 })
      await once(socket, 'connect')
    }
  } finally {
    proxy.child.kill('SIGCONT')
  }
  const isSampled = ({ sampled }: FlowCoverage) => sampled > 1
  const sampled = await until('the flood is sampled', () => watch.coverages.find(isSampled))
  expect(describeCoverage(sampled)).toMatch(/sampled 1 of \d+\./)
  expect(sampled.lost).toBe(0)
  const isOver = () => watch.coverages.some(isSampled) && watch.coverages.at(-1)?.sampled === 1
  await until('all flows are followed again', isOver)
  const shownIn = (events: readonly FlowEvent[]) =>
    new Set(events.flatMap((event) => (event.kind === 'flow' ? [event.flow.from] : [])))
  await until('all open flows are shown', () => shownIn(watch.events).size === count)
  const over = watch.events.findLastIndex((event) => event.kind === 'coverage' && !isSampled(event.coverage))
  const before = shownIn(watch.events.slice(0, over)).size
  expect(before).toBeGreaterThan(250)
  expect(before).toBeLessThan(count)
  for (const flow of watch.flows) expect(flow).toMatchObject({ verdict: 'open', to: `${clusterIp}:80` })
  for (const socket of sockets) socket.destroy()
})
