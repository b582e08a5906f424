// What the relays of userspace mode count: clients and bytes, by service port and endpoint.

import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { DialReports } from '../../../src/backend/relay/dial-reports.ts'
import type { RelayListenerEntry } from '../../../src/backend/userspace/entries.ts'
import { RelayListeners } from '../../../src/backend/userspace/relay-listeners.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import { until } from '../../support/until.ts'

const makeListeners = (udpIdleMs: number): RelayListeners =>
  new RelayListeners({
    portRange: undefined,
    udpIdleMs,
    budget: { acquire: () => true, release: () => {} },
    dials: new DialReports(),
    clock: systemClock,
    log: silentLogger,
  })

it('counts clients and bytes by endpoint, keeps the sum when endpoints change, and forgets with the service', async () => {
  const servers = [0, 1].map(() => createServer((socket) => socket.on('data', () => socket.end('answer'))))
  const endpoints: string[] = []
  for (const server of servers) {
    await once(server.listen(0, '127.0.0.1'), 'listening')
    endpoints.push(`127.0.0.1:${(server.address() as AddressInfo).port}`)
    onTestFinished(() => void server.close())
  }
  const listeners = makeListeners(1000)
  const id = 'ns/web:http/tcp cluster'
  const put = (...some: readonly string[]) => {
    const listener = { protocol: 'tcp', endpoints: some, serving: [], affinitySeconds: 0 } as const
    const entry: RelayListenerEntry = { kind: 'listener', id, digest: some.join(), listener }
    return listeners.put([entry], { host: '127.0.0.1', avoid: () => false })
  }
  const ask = async () => {
    const socket = connect(listeners.findOpened(id)?.port as number, '127.0.0.1')
    socket.end('question?')
    socket.resume()
    await once(socket, 'close')
  }
  expect(await put(...endpoints)).toEqual([])
  onTestFinished(() => listeners.close([id]))
  for (let i = 0; i < 6; i++) await ask()
  const read = () => listeners.readCounters(4)
  await until('all connections have ended', () => read()[0]?.bytesOut === 36)
  expect(read()).toMatchObject([{ port: 'ns/web:http', protocol: 'tcp', connections: 6, bytesIn: 54, bytesOut: 36 }])
  expect([...(read()[0]?.endpoints.values() ?? [])].map(({ connections }) => connections)).toEqual([3, 3])
  await put(endpoints[0] as string)
  await ask()
  await until('the last connection has ended', () => read()[0]?.bytesOut === 42)
  expect(read()[0]?.connections).toBe(7)
  expect([...(read()[0]?.endpoints.keys() ?? [])]).toEqual([endpoints[0]])
  await listeners.close([id])
  expect(read()).toEqual([])
})

it('counts flows of UDP at once, and their datagrams and bytes when they have ended', async () => {
  const open = async (): Promise<Socket> => {
    const socket = createSocket('udp4')
    await once(socket.bind(0, '127.0.0.1'), 'listening')
    onTestFinished(() => void socket.close())
    return socket
  }
  const server = await open()
  server.on('message', (_, { port, address }) => server.send('answer', port, address))
  const endpoint = `127.0.0.1:${server.address().port}`
  const listeners = makeListeners(100)
  const id = 'ns/dns:dns/udp cluster'
  const listener = { protocol: 'udp', endpoints: [endpoint], serving: [], affinitySeconds: 0 } as const
  await listeners.put([{ kind: 'listener', id, digest: '', listener }], { host: '127.0.0.1', avoid: () => false })
  onTestFinished(() => listeners.close([id]))
  const client = await open()
  for (let i = 0; i < 3; i++) {
    client.send('question?', listeners.findOpened(id)?.port as number, '127.0.0.1')
    await once(client, 'message')
  }
  const read = () => listeners.readCounters(4)[0]
  expect(read()).toMatchObject({ port: 'ns/dns:dns', protocol: 'udp', connections: 1 })
  await until('the flow has ended', () => read()?.bytesOut === 18)
  const relayed = { connections: 1, packetsIn: 3, packetsOut: 3, bytesIn: 27, bytesOut: 18 }
  expect(read()).toMatchObject(relayed)
  expect(read()?.endpoints.get(endpoint)).toEqual(relayed)
})
