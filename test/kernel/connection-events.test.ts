// What the kernel passes on of connections to endpoints, beside everything that it reports: by service address, by node port, by a pod to
// itself and directly, in IPv4 and IPv6. Real connections, translated by the whole program.

import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../src/lib/time.ts'
import { ConnectionDecoder } from '../../src/sys/conntrack/conntrack-events.ts'
import { filterConnections } from '../../src/sys/conntrack/conntrack-filter.ts'
import { notificationGroups, notificationKind } from '../../src/sys/conntrack/conntrack-tuple.ts'
import type { MessageReader } from '../../src/sys/netlink/message.ts'
import { NetlinkSocket } from '../../src/sys/netlink/socket.ts'
import { type FilteredSubscription, subscribe } from '../../src/sys/netlink/subscribe.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { clusterIp, ipv6, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

const nodePorts = { 4: 30080, 6: 30081 } as const
const families = {
  4: { clusterIp, nodeIp, podIp: podIps[0] as string, endpoint: `${podIps[0]}:8080` },
  6: { clusterIp: ipv6.clusterIp, nodeIp: ipv6.nodeIp, podIp: ipv6.podIps[0], endpoint: `[${ipv6.podIps[0]}]:8080` },
} as const

let network: NodeNetwork
let api: FixedApi
let proxy: WholeProxy
let socket: NetlinkSocket
let subscriptions: readonly FilteredSubscription[]
/** Every notification of the kernel. */
const all: string[] = []
/** Those that pass the filter, and what they say. */
const passed: string[] = []
const said: (readonly unknown[])[] = []

beforeAll(async () => {
  network = await NodeNetwork.create()
  // One endpoint each: a pod that dials the service meets itself.
  const objects = ([4, 6] as const).flatMap((family) => {
    const service = `ns1/web${family}`
    const { clusterIp: clusterIP, podIp } = families[family]
    const ports = [`http 80/tcp ${nodePorts[family]}`]
    return [
      expand({ service, type: 'NodePort', clusterIP, ports }, family),
      expand({ slice: service, ports: ['http 8080/tcp'], endpoints: [`${podIp} local`] }, family + 1),
    ]
  })
  api = await serveObjects(network.node, nodeName, nodeIp, objects)
  proxy = await WholeProxy.start({ network, api, mode: 'nftables' })
  await proxy.waitUntilSynced()
  socket = network.node.inside(() => new NetlinkSocket({ protocol: 'netfilter', purpose: 'test' }))
  subscriptions = network.node.inside(() => watch())
})

afterAll(async () => {
  for (const subscription of subscriptions) subscription.close()
  socket.close()
  await proxy.stop('SIGKILL')
  api.close()
  await network.close()
})

beforeEach(async () => {
  await forgetConnections()
  readQueued()
  for (const list of [all, passed, said]) list.length = 0
})

function watch(): readonly FilteredSubscription[] {
  const decoder = new ConnectionDecoder({
    opened: (_, ...args) => void said.push(['opened', ...args]),
    answered: (_, endpoint) => void said.push(['answered', endpoint]),
    ended: (_, endpoint) => void said.push(['ended', endpoint]),
  })
  decoder.ports = new Set([8080])
  const options = { protocol: 'netfilter', purpose: 'test', clock: systemClock, batchMs: 20 } as const
  const lost = (reason: string) => void said.push(['lost', reason])
  const open = (message: (message: MessageReader) => void) => subscribe(options, notificationGroups, { message, lost })
  const everything = open((message) => void all.push(notificationKind(message) ?? ''))
  const filtered = open((message) => {
    passed.push(notificationKind(message) ?? '')
    decoder.decode(message)
  })
  expect(filtered.setFilter(filterConnections(decoder.ports))).toBe(true)
  return [everything, filtered]
}

/** The kernel sends a notification to both sockets before it does anything else. */
const readQueued = () => expect(subscriptions.map((subscription) => subscription.readQueued())).toEqual([true, true])

/** Empties the table of the node: the kernel reports the end of every connection. */
const forgetConnections = () =>
  socket.request({ op: 'empty the table', type: 0x102, body: (writer) => writer.netfilter(0) })

const ends = () => all.filter((kind) => kind === 'destroy').length

const reject = (rule: string) =>
  network
    .pod(0)
    .exec('sh', [
      '-c',
      `nft 'add table inet f; add chain inet f c { type filter hook input priority 0; }; add rule inet f c tcp dport 8080 ${rule}'`,
    ])

describe.each([4, 6] as const)('in IPv%i', (family) => {
  const { clusterIp: serviceIp, nodeIp: ownIp, podIp, endpoint } = families[family]
  const ways = [
    ['by the service address', serviceIp, 80, 'client'],
    ['by the node port', ownIp, nodePorts[family], 'client'],
    ['of a pod to itself', serviceIp, 80, 'pod'],
    ['of the node itself', serviceIp, 80, 'node'],
    ['directly', podIp, 8080, 'client'],
  ] as const

  it.each(ways)('a connection %s passes when it begins and when it is answered', async (_, ip, port, who) => {
    const from = { client: network.client, pod: network.pod(0), node: network.node }[who]
    const { answer, socket: held } = await network.dial(ip, port, 20_000, from)
    held.destroy()
    expect(answer).toBe(podIp)
    await forgetConnections()
    readQueued()
    expect(passed).toEqual(['new', 'update'])
    expect(said).toEqual([
      ['opened', endpoint, port !== 8080],
      ['answered', endpoint],
    ])
    // The connection became established, and ended.
    expect(all.filter((kind) => kind === 'update').length).toBeGreaterThanOrEqual(2)
    expect(ends()).toBeGreaterThanOrEqual(1)
  })

  it('a refused connection passes when it begins and when it ends', async () => {
    await reject('reject with tcp reset')
    const answer = await network.ask(serviceIp, 80, 20_000)
    await network.pod(0).exec('nft', ['flush', 'ruleset'])
    expect(answer).toBe('ECONNREFUSED')
    readQueued()
    expect(said).toEqual([
      ['opened', endpoint, true],
      ['ended', endpoint],
    ])
  })

  it('a connection without an answer passes when it begins', async () => {
    await reject('drop')
    const answer = await network.ask(serviceIp, 80, 500)
    await network.pod(0).exec('nft', ['flush', 'ruleset'])
    expect(answer).toBe('timeout')
    readQueued()
    expect(said[0]).toEqual(['opened', endpoint, true])
    expect(said.some(([what]) => what === 'answered')).toBe(false)
  })

  it('a connection that is tracked again by other packets than its SYN does not pass', async () => {
    const { socket: held } = await network.dial(podIp, 8080, 20_000)
    await forgetConnections()
    readQueued()
    for (const list of [all, passed]) list.length = 0
    held.write('hello again\n')
    await until('the kernel tracks the connection again', () => {
      readQueued()
      return all.includes('new')
    })
    held.destroy()
    expect(passed).not.toContain('new')
  })

  it('connections to other ports and of other protocols do not pass', async () => {
    expect(await network.ask(podIp, 8081, 20_000)).toBe('ECONNREFUSED')
    await network.client.exec('ping', ['-c', '1', '-W', '5', podIp])
    await until('the kernel reports both connections', () => {
      readQueued()
      return all.filter((kind) => kind === 'new').length >= 2
    })
    await forgetConnections()
    readQueued()
    expect(ends()).toBeGreaterThanOrEqual(2)
    expect(passed).toEqual([])
  })
})
