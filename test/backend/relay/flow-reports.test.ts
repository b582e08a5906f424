// What relays report of their flows over real sockets on loopback: begin and end of each, and nothing while nobody follows.

import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { once } from 'node:events'
import { type AddressInfo, createConnection, createServer, type Socket } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import { Balancer } from '../../../src/backend/relay/balancer.ts'
import { FlowReports } from '../../../src/backend/relay/flow-reports.ts'
import type { Relay, RelayOptions } from '../../../src/backend/relay/relay.ts'
import { relayTcp } from '../../../src/backend/relay/tcp.ts'
import { relayUdp } from '../../../src/backend/relay/udp.ts'
import type { RelayedFlow } from '../../../src/backend/relayed-flows.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { until } from '../../support/until.ts'

const opened: (() => unknown)[] = []
afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close()
})

async function server(serve: (socket: Socket) => void): Promise<string> {
  const made = createServer({ allowHalfOpen: true }, serve).listen(0, '127.0.0.1')
  await once(made, 'listening')
  opened.push(() => made.close())
  return `127.0.0.1:${(made.address() as AddressInfo).port}`
}

const echo = () => server((socket) => socket.on('error', () => {}).pipe(socket))

async function deadEndpoint(): Promise<string> {
  const made = createServer().listen(0, '127.0.0.1')
  await once(made, 'listening')
  const { port } = made.address() as AddressInfo
  await new Promise((resolve) => made.close(resolve))
  return `127.0.0.1:${port}`
}

async function open(
  protocol: 'tcp' | 'udp',
  reports: FlowReports,
  endpoints: readonly string[],
  more: Partial<RelayOptions> & { readonly idleMs?: number } = {},
): Promise<Relay> {
  const balancer = new Balancer(() => 0.99, Date.now)
  balancer.update(endpoints, 0)
  const origin = { family: 4, protocol, port: () => 'ns/svc:p' } as const
  const options: RelayOptions = {
    ...{ host: '127.0.0.1', port: 0, balancer, log: silentLogger, flows: { reports, origin }, ...more },
  }
  const relay = await (protocol === 'tcp' ? relayTcp(options) : relayUdp({ idleMs: 60_000, ...more, ...options }))
  opened.push(() => relay.close(true).catch(() => {}))
  return relay
}

/** Follows all flows. */
function follow(reports: FlowReports) {
  const noted: RelayedFlow[] = []
  const stop = reports.follow({ selects: () => true, note: (flow) => noted.push(flow) })
  const ended = () => until('a flow has ended', () => noted.find(({ verdict }) => verdict !== 'open'))
  return { noted, stop, ended }
}

async function connect(port: number): Promise<Socket> {
  const socket = createConnection({ host: '127.0.0.1', port, allowHalfOpen: true })
  socket.on('error', () => {})
  opened.push(() => socket.destroy())
  await once(socket, 'connect')
  return socket
}

async function say(socket: Socket, text: string): Promise<string> {
  socket.write(text)
  return String((await once(socket, 'data'))[0])
}

async function udp(): Promise<UdpSocket> {
  const socket = createSocket('udp4')
  await once(socket.bind(0, '127.0.0.1'), 'listening')
  opened.push(() => socket.close())
  return socket
}

class UnfollowedReports extends FlowReports {
  override note(): never {
    throw new Error('a flow was described although nobody follows')
  }

  override nextId(): never {
    throw new Error('a flow got a number although nobody looks')
  }
}

describe('while nobody follows', () => {
  it('describes no flow, and keeps nothing of those that ended', async () => {
    const reports = new UnfollowedReports(Date.now)
    const tcp = await open('tcp', reports, [await deadEndpoint(), await echo()])
    for (let i = 0; i < 4; i++) {
      const socket = await connect(tcp.port)
      expect(await say(socket, 'hello')).toBe('hello')
      socket.end()
      await once(socket, 'end')
    }
    const pod = await udp()
    pod.on('message', (_, { port, address }) => pod.send('answer', port, address))
    const datagrams = await open('udp', reports, [`127.0.0.1:${pod.address().port}`], { idleMs: 50 })
    const client = await udp()
    client.send('question', datagrams.port, '127.0.0.1')
    await once(client, 'message')
    await until('all have ended', () => tcp.active === 0 && datagrams.active === 0)
    expect([...reports.list()]).toEqual([])
  })

  it('lists what is open, with its bytes, and goes on with the same number when someone follows', async () => {
    const reports = new FlowReports(() => 1_000)
    const endpoint = await echo()
    const relay = await open('tcp', reports, [endpoint])
    const socket = await connect(relay.port)
    await say(socket, 'hello')
    const [listed] = [...reports.list()]
    expect(listed).toMatchObject({
      ...{ id: 1, family: 4, protocol: 'tcp', port: 'ns/svc:p', client: '127.0.0.1', clientPort: socket.localPort },
      ...{ local: '127.0.0.1', localPort: relay.port, endpoint, verdict: 'open', startedAt: 1_000, endedAt: undefined },
      traffic: { bytesIn: 5, bytesOut: 5 },
    })
    // A relay that accepts nothing more still has its connections.
    await relay.close()
    expect([...reports.list()]).toHaveLength(1)
    const { noted, ended } = follow(reports)
    socket.end()
    expect(await ended()).toMatchObject({ id: 1, verdict: 'closed', endedAt: 1_000, local: '127.0.0.1' })
    expect(noted).toHaveLength(1)
    expect([...reports.list()]).toEqual([])
  })
})

describe('the flows of TCP', () => {
  it('begin when the client is accepted, and end with its bytes', async () => {
    const reports = new FlowReports(Date.now)
    const { noted, ended, stop } = follow(reports)
    const relay = await open('tcp', reports, [await echo()])
    const socket = await connect(relay.port)
    await say(socket, 'hello')
    expect(noted.map(({ verdict }) => verdict)).toEqual(['open'])
    socket.end('more')
    expect(await ended()).toMatchObject({ verdict: 'closed', traffic: { bytesIn: 9, bytesOut: 9, packetsIn: 0 } })
    stop()
    const later = await connect(relay.port)
    await say(later, 'hello')
    expect(noted).toHaveLength(2)
  })

  it('are reset by the client or by the endpoint', async () => {
    const reports = new FlowReports(Date.now)
    const { noted, ended } = follow(reports)
    const relay = await open('tcp', reports, [await echo()])
    const socket = await connect(relay.port)
    await say(socket, 'hello')
    socket.resetAndDestroy()
    expect((await ended()).verdict).toBe('reset')
    noted.length = 0
    const rude = await server((other) => other.on('error', () => {}).on('data', () => other.resetAndDestroy()))
    const second = await open('tcp', reports, [rude])
    const victim = await connect(second.port)
    victim.write('hello')
    expect(await ended()).toMatchObject({ verdict: 'reset', endpoint: rude, traffic: { bytesIn: 5, bytesOut: 0 } })
  })

  it('name each endpoint that was tried', async () => {
    const reports = new FlowReports(Date.now)
    const { noted } = follow(reports)
    const [dead, alive] = [await deadEndpoint(), await echo()]
    const relay = await open('tcp', reports, [dead, alive])
    // The balancer takes turns, so one of two clients meets the dead endpoint.
    for (let i = 0; i < 2; i++) {
      const socket = await connect(relay.port)
      await say(socket, 'hello')
      socket.end()
    }
    await until('both are closed', () => noted.filter(({ verdict }) => verdict === 'closed').length === 2)
    const refused = noted.find(({ verdict }) => verdict === 'refused')
    expect(refused).toMatchObject({ endpoint: dead, traffic: { bytesIn: 0, bytesOut: 0 } })
    const same = noted.filter(({ clientPort }) => clientPort === refused?.clientPort)
    expect(same.map(({ verdict, endpoint }) => `${verdict} ${endpoint}`)).toEqual([
      ...[`open ${dead}`, `refused ${dead}`, `open ${alive}`, `closed ${alive}`],
    ])
    expect(new Set(same.map(({ id }) => id)).size).toBe(2)
  })

  it('say why a client was turned away', async () => {
    const reports = new FlowReports(Date.now)
    const { noted } = follow(reports)
    const endpoint = await echo()
    const busy = { acquire: () => false, release: () => {} }
    const relays = [
      await open('tcp', reports, []),
      await open('tcp', reports, [endpoint], { admits: () => false }),
      await open('tcp', reports, [endpoint], { budget: busy }),
    ]
    for (const { port } of relays) {
      // The reset may come before the client knows that it is connected.
      const socket = createConnection({ host: '127.0.0.1', port }).on('error', () => {})
      await new Promise((resolve) => socket.once('close', resolve))
    }
    expect(noted.map(({ verdict, endpoint: chosen, why }) => [verdict, chosen, why])).toEqual([
      ['rejected', '', 'the relay (no endpoint)'],
      ['rejected', '', 'the relay (this client may not use the address)'],
      ['rejected', '', 'the relay (too many open files)'],
    ])
    expect([...reports.list()]).toEqual([])
  })

  it('are described only for the clients that are selected', async () => {
    const reports = new FlowReports(Date.now)
    const asked: number[] = []
    const noted: RelayedFlow[] = []
    reports.follow({ selects: (port) => asked.push(port) < 0, note: (flow) => noted.push(flow) })
    const relay = await open('tcp', reports, [await echo()])
    const socket = await connect(relay.port)
    await say(socket, 'hello')
    expect(asked).toEqual([socket.localPort])
    expect(noted).toEqual([])
  })
})

describe('the flows of UDP', () => {
  const answering = async () => {
    const pod = await udp()
    pod.on('message', (_, { port, address }) => pod.send('answer', port, address))
    return `127.0.0.1:${pod.address().port}`
  }

  it('expire, with their datagrams', async () => {
    const reports = new FlowReports(Date.now)
    const { noted, ended } = follow(reports)
    const endpoint = await answering()
    const relay = await open('udp', reports, [endpoint], { idleMs: 300 })
    const client = await udp()
    for (let i = 0; i < 2; i++) {
      client.send('question', relay.port, '127.0.0.1')
      await once(client, 'message')
    }
    expect([...reports.list()]).toMatchObject([{ verdict: 'open', endpoint, local: '127.0.0.1' }])
    expect(await ended()).toMatchObject({
      ...{ verdict: 'expired', endpoint, clientPort: client.address().port, localPort: relay.port },
      traffic: { packetsIn: 2, packetsOut: 2, bytesIn: 16, bytesOut: 12 },
    })
    expect(noted.map(({ id }) => id)).toEqual([1, 1])
  })

  it('time out without an answer, are refused, and are closed when the endpoint is gone', async () => {
    const reports = new FlowReports(Date.now)
    const { noted } = follow(reports)
    const silent = `127.0.0.1:${(await udp()).address().port}`
    const gone = createSocket('udp4')
    await once(gone.bind(0, '127.0.0.1'), 'listening')
    const closedPort = `127.0.0.1:${gone.address().port}`
    await new Promise<void>((resolve) => gone.close(() => resolve()))
    const client = await udp()
    const last = () => noted.filter(({ verdict }) => verdict !== 'open').map(({ verdict }) => verdict)
    const send = async (endpoint: string, idleMs: number) => {
      const relay = await open('udp', reports, [endpoint], { idleMs })
      client.send('question', relay.port, '127.0.0.1')
      await until('the flow has begun', () => noted.some(({ localPort }) => localPort === relay.port))
      return relay
    }
    await send(silent, 50)
    await until('it timed out', () => last().length === 1)
    const replaced = await send(silent, 60_000)
    replaced.keepOnly(new Set())
    await send(closedPort, 60_000)
    await until('it is refused', () => last().length === 3)
    expect(last()).toEqual(['timed-out', 'closed', 'refused'])
  })

  it('say why a datagram was dropped', async () => {
    const reports = new FlowReports(Date.now)
    const { noted } = follow(reports)
    const relay = await open('udp', reports, [])
    const client = await udp()
    client.send('question', relay.port, '127.0.0.1')
    await until('it is reported', () => noted.length === 1)
    expect(noted).toMatchObject([{ verdict: 'dropped', endpoint: '', why: 'the relay (no endpoint)' }])
  })
})
