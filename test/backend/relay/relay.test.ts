// The TCP and the UDP relay over real sockets on loopback, and how the balancer chooses endpoints.

import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { type AddressInfo, createConnection, createServer, type Server, type Socket } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import { Balancer } from '../../../src/backend/relay/balancer.ts'
import type { Relay } from '../../../src/backend/relay/relay.ts'
import { relayTcp } from '../../../src/backend/relay/tcp.ts'
import { relayUdp } from '../../../src/backend/relay/udp.ts'
import { silentLogger } from '../../../src/lib/log.ts'

const opened: (() => unknown)[] = []
afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close()
})

function balancer(endpoints: readonly string[], affinitySeconds = 0): Balancer {
  const made = new Balancer(() => 0.5, Date.now)
  made.update(endpoints, affinitySeconds)
  return made
}

async function tcpServer(serve: (socket: Socket) => void): Promise<string> {
  const server: Server = createServer({ allowHalfOpen: true }, serve).listen(0, '127.0.0.1')
  await once(server, 'listening')
  opened.push(() => server.close())
  return `127.0.0.1:${(server.address() as AddressInfo).port}`
}

async function deadEndpoint(): Promise<string> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return `127.0.0.1:${port}`
}

/** An endpoint that neither answers nor refuses until `wake`: a stopped process whose accept queue is full. */
async function silentEndpoint(): Promise<{ readonly address: string; wake(): void }> {
  const program = `require('net').createServer((s) => s.end('late')).listen({ port: 0, host: '127.0.0.1', backlog: 1 },
      function () { console.log(this.address().port) })`
  const child = spawn(process.execPath, ['-e', program], { stdio: ['ignore', 'pipe', 'inherit'] })
  opened.push(() => child.kill('SIGKILL'))
  const port = Number((await once(child.stdout, 'data'))[0])
  child.kill('SIGSTOP')
  for (let i = 0; i < 3; i++) {
    const filler = createConnection({ host: '127.0.0.1', port })
    filler.on('error', () => {})
    opened.push(() => filler.destroy())
  }
  await delay(50)
  return { address: `127.0.0.1:${port}`, wake: () => child.kill('SIGCONT') }
}

async function tcpRelay(
  endpoints: readonly string[],
  more: Partial<Parameters<typeof relayTcp>[0]> = {},
): Promise<Relay> {
  const relay = await relayTcp({
    host: '127.0.0.1',
    port: 0,
    balancer: balancer(endpoints),
    log: silentLogger,
    ...more,
  })
  opened.push(() => relay.close(true))
  return relay
}

/** Sends the question, half-closes, and returns everything that comes back until the other side ends. */
async function ask(port: number, question: string): Promise<string> {
  const socket = createConnection({ host: '127.0.0.1', port, allowHalfOpen: true })
  opened.push(() => socket.destroy())
  socket.end(question)
  const parts: Buffer[] = []
  for await (const part of socket) parts.push(part)
  return Buffer.concat(parts).toString()
}

describe('the TCP relay', () => {
  it('honours half-close: the answer comes after the client has closed its side', async () => {
    const endpoint = await tcpServer((socket) => {
      let size = 0
      socket.on('data', (part) => {
        size += part.length
      })
      socket.on('end', () => socket.end(`got ${size}`))
    })
    const relay = await tcpRelay([endpoint])
    expect(await ask(relay.port, 'x'.repeat(100_000))).toBe('got 100000')
  })

  it('tries the next endpoint when one is dead', async () => {
    const alive = await tcpServer((socket) => socket.end('alive'))
    const relay = await tcpRelay([await deadEndpoint(), alive, await deadEndpoint()])
    for (let i = 0; i < 6; i++) expect(await ask(relay.port, '?')).toBe('alive')
  })

  it('tries a slow endpoint again with a longer timeout', async () => {
    const { address, wake } = await silentEndpoint()
    const shed: string[] = []
    const relay = await tcpRelay([address], { onShed: (why) => shed.push(why) })
    const answer = ask(relay.port, '?')
    await delay(350)
    wake()
    expect(await answer).toBe('late')
    expect(shed).toEqual([])
  })

  it('makes one client wait for a dead endpoint, not every client', async () => {
    const alive = await tcpServer((socket) => socket.end('alive'))
    const { address: dead } = await silentEndpoint()
    const recording = balancer([alive, dead])
    const picked: (string | undefined)[] = []
    const pick = recording.pick.bind(recording)
    recording.pick = (client, failed) => {
      picked.push(pick(client, failed))
      return picked.at(-1)
    }
    const relay = await tcpRelay([], { balancer: recording })
    for (let i = 0; i < 6; i++) expect(await ask(relay.port, '?')).toBe('alive')
    expect(picked).toContain(dead)
    expect(picked.filter((endpoint) => endpoint === dead).length).toBeLessThan(3)
  })

  it('does not blame an endpoint when this process itself is late', async () => {
    const endpoints = [await tcpServer((socket) => socket.end('one')), await tcpServer((socket) => socket.end('two'))]
    const sticky = balancer(endpoints, 60)
    const relay = await tcpRelay([], { balancer: sticky })
    const first = await ask(relay.port, '?')
    const pick = sticky.pick.bind(sticky)
    sticky.pick = (client, failed) => {
      // Blocks the whole process for longer than a dial may take, just after the dial has begun.
      setImmediate(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400))
      return pick(client, failed)
    }
    expect(await ask(relay.port, '?')).toBe(first)
  })

  it('passes on a reset: an answer that was cut off must not look complete', async () => {
    const endpoint = await tcpServer((socket) => {
      socket.write('half an ans')
      socket.once('data', () => socket.resetAndDestroy())
    })
    const relay = await tcpRelay([endpoint])
    const socket = createConnection({ host: '127.0.0.1', port: relay.port })
    opened.push(() => socket.destroy())
    await once(socket, 'data')
    socket.write('go on')
    await expect(once(socket, 'end')).rejects.toMatchObject({ code: 'ECONNRESET' })
  })

  it('carries many bytes in both directions at once without changing any', async () => {
    const endpoint = await tcpServer((socket) => socket.pipe(socket))
    const relay = await tcpRelay([endpoint])
    const socket = createConnection({ host: '127.0.0.1', port: relay.port, allowHalfOpen: true })
    opened.push(() => socket.destroy())
    const sent = createHash('sha256')
    const got = createHash('sha256')
    const parts = Array.from({ length: 400 }, (_, i) => Buffer.alloc(1 + ((i * 7919) % 150_000), i))
    for (const part of parts) sent.update(part)
    const writing = (async () => {
      for (const part of parts) if (!socket.write(part)) await once(socket, 'drain')
      socket.end()
    })()
    // The client reads slowly at first, so that the relay has to pause and to swap buffers.
    let reads = 0
    for await (const part of socket) {
      got.update(part)
      if (++reads < 20) await delay(5)
    }
    await writing
    expect(got.digest('hex')).toBe(sent.digest('hex'))
  })

  it('resets a client when no endpoint answers', async () => {
    const shed: string[] = []
    const relay = await tcpRelay([await deadEndpoint()], { onShed: (why) => shed.push(why) })
    await expect(ask(relay.port, '?')).rejects.toMatchObject({ code: 'ECONNRESET' })
    expect(shed).toEqual(['dial'])
  })

  it('resets a client that `admits` refuses', async () => {
    const endpoint = await tcpServer((socket) => socket.end('in'))
    const relay = await tcpRelay([endpoint], { admits: () => false })
    await expect(ask(relay.port, '?')).rejects.toMatchObject({ code: 'ECONNRESET' })
  })

  it('keeps open connections when it stops accepting', async () => {
    const endpoint = await tcpServer((socket) => socket.pipe(socket))
    const relay = await tcpRelay([endpoint])
    const socket = createConnection({ host: '127.0.0.1', port: relay.port })
    opened.push(() => socket.destroy())
    socket.write('one')
    expect(String((await once(socket, 'data'))[0])).toBe('one')
    await relay.close()
    socket.write('two')
    expect(String((await once(socket, 'data'))[0])).toBe('two')
    await expect(ask(relay.port, '?')).rejects.toMatchObject({ code: 'ECONNREFUSED' })
  })

  it('pauses a sender whose receiver does not read', async () => {
    const sockets: Socket[] = []
    const endpoint = await tcpServer((socket) => {
      socket.pause()
      sockets.push(socket)
    })
    const relay = await tcpRelay([endpoint])
    const socket = createConnection({ host: '127.0.0.1', port: relay.port })
    opened.push(() => socket.destroy())
    await once(socket, 'connect')
    const block = Buffer.alloc(1 << 20)
    let blocks = 0
    while (socket.write(block) && blocks < 512) blocks++
    for (let quiet = 0; quiet < 3 && blocks < 512; quiet++) {
      const drained = await Promise.race([once(socket, 'drain').then(() => true), delay(200).then(() => false)])
      if (drained) quiet = -1
      if (drained) while (socket.write(block) && blocks < 512) blocks++
    }
    expect(blocks).toBeLessThan(128)
    for (const one of sockets) one.destroy()
  })
})

describe('the UDP relay', () => {
  async function udpServer(name: string): Promise<string> {
    const socket = createSocket('udp4').bind(0, '127.0.0.1')
    await once(socket, 'listening')
    socket.on('message', (message, from) => socket.send(`${name}:${message}`, from.port, from.address))
    opened.push(() => socket.close())
    return `127.0.0.1:${socket.address().port}`
  }

  it('moves an active client when its endpoint is removed, and when its endpoint refuses', async () => {
    const endpoints = [await udpServer('a'), await udpServer('b')]
    const adjustable = balancer(endpoints, 60)
    const options = { host: '127.0.0.1', port: 0, log: silentLogger, idleMs: 60_000 }
    const relay = await relayUdp({ ...options, balancer: adjustable })
    opened.push(() => relay.close())
    const client = createSocket('udp4')
    opened.push(() => client.close())
    let said = 0
    const say = async (): Promise<string> => {
      const question = String(++said)
      // Sends again if no answer comes, as clients of UDP do. Then answers to earlier questions may follow.
      const send = () => client.send(question, relay.port, '127.0.0.1')
      const again = setInterval(send, 100)
      send()
      for (;;) {
        const [name, answered] = String((await once(client, 'message'))[0]).split(':')
        if (answered !== question) continue
        clearInterval(again)
        return name as string
      }
    }
    const first = await say()
    const rest = endpoints.filter((_, i) => 'ab'[i] !== first)
    adjustable.update(rest, 60)
    relay.keepOnly(new Set(rest))
    const second = await say()
    expect(second).not.toBe(first)
    const dead = await deadEndpoint()
    adjustable.update([dead], 60)
    relay.keepOnly(new Set([dead]))
    client.send('?', relay.port, '127.0.0.1')
    await delay(50)
    adjustable.update([dead, ...rest], 60)
    expect(await say()).toBe(second)
  })

  it('loses no datagram in a burst of many clients', async () => {
    const endpoint = createSocket({ type: 'udp4', recvBufferSize: 4 * 1024 * 1024 }).bind(0, '127.0.0.1')
    await once(endpoint, 'listening')
    opened.push(() => endpoint.close())
    let got = 0
    endpoint.on('message', () => {
      got++
    })
    const single = balancer([`127.0.0.1:${endpoint.address().port}`])
    const options = { host: '127.0.0.1', port: 0, log: silentLogger, idleMs: 60_000 }
    const relay = await relayUdp({ ...options, balancer: single })
    opened.push(() => relay.close())
    const clients = Array.from({ length: 350 }, () => createSocket('udp4'))
    opened.push(() => Promise.all(clients.map((client) => new Promise<void>((resolve) => client.close(resolve)))))
    await Promise.all(clients.map((client) => new Promise<void>((resolve) => client.connect(relay.port, resolve))))
    // All in one turn of the event loop, so the relay reads nothing in between.
    for (const client of clients) client.send('x')
    for (let i = 0; i < 500 && got < clients.length; i++) await delay(20)
    expect(got).toBe(clients.length)
  })

  it('keeps an active client on its endpoint, and chooses again after the idle time', async () => {
    const endpoints = [await udpServer('a'), await udpServer('b')]
    const options = { host: '127.0.0.1', port: 0, log: silentLogger, idleMs: 150 }
    const relay = await relayUdp({ ...options, balancer: balancer(endpoints) })
    opened.push(() => relay.close())
    const client = createSocket('udp4')
    opened.push(() => client.close())
    const say = async (text: string): Promise<string> => {
      client.send(text, relay.port, '127.0.0.1')
      return String((await once(client, 'message'))[0])
    }
    const first = await say('1')
    expect(await say('2')).toBe(`${first[0]}:2`)
    expect(relay.active).toBe(1)
    while (relay.active > 0) await delay(20)
    const later = await say('3')
    expect(later[0]).not.toBe(first[0])
  })
})

describe('the balancer', () => {
  it('goes through all endpoints in turn', () => {
    const picks = balancer(['a:1', 'b:1', 'c:1'])
    const seen = Array.from({ length: 6 }, () => picks.pick('x'))
    expect(new Set(seen.slice(0, 3)).size).toBe(3)
    expect(seen.slice(3)).toEqual(seen.slice(0, 3))
  })

  it('keeps a client on its endpoint until the affinity timeout, and forgets the client when the endpoint is removed', () => {
    let now = 0
    const sticky = new Balancer(Math.random, () => now)
    sticky.update(['a:1', 'b:1', 'c:1'], 10)
    const first = sticky.pick('client') as string
    for (now = 0; now < 60_000; now += 9_000) expect(sticky.pick('client')).toBe(first)
    sticky.update(
      ['a:1', 'b:1', 'c:1'].filter((endpoint) => endpoint !== first),
      10,
    )
    expect(sticky.pick('client')).not.toBe(first)
    const second = sticky.pick('client') as string
    expect(sticky.pick('client', new Set([second]))).not.toBe(second)
  })

  it('skips an unresponsive endpoint, lets one client try it later, and uses it when there is no other', () => {
    let now = 0
    const picks = new Balancer(Math.random, () => now)
    picks.update(['dead:1', 'alive:1', 'well:1'], 0)
    const some = (count: number) => Array.from({ length: count }, () => picks.pick('x'))
    picks.markUnresponsive('dead:1')
    expect(some(20)).not.toContain('dead:1')
    now = 20_000
    expect(some(20).filter((endpoint) => endpoint === 'dead:1')).toHaveLength(1)
    for (const endpoint of ['dead:1', 'alive:1', 'well:1']) picks.markUnresponsive(endpoint)
    expect(new Set(some(3)).size).toBe(3)
    picks.markResponsive('alive:1')
    expect(new Set(some(5))).toEqual(new Set(['alive:1']))
    picks.markResponsive('dead:1')
    expect(some(2)).toContain('dead:1')
  })

  it('returns undefined without endpoints', () => {
    expect(balancer([]).pick('x')).toBeUndefined()
  })
})

const delay = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
