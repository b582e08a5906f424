// The processes of bench/userspace.ts: an endpoint, our relay, or a client, each separate, so that each has its own CPU time and memory.

import { once } from 'node:events'
import { createConnection, createServer, type Socket } from 'node:net'
import { Balancer } from '../src/backend/relay/balancer.ts'
import { relayTcp } from '../src/backend/relay/tcp.ts'
import { silentLogger } from '../src/lib/log.ts'

/** A task for the client. */
export interface Task {
  readonly kind: 'download' | 'upload' | 'ping' | 'connect' | 'idle' | 'close'
  readonly port: number
  /** Bytes, round trips or connections. */
  readonly amount: number
  /** Connections at the same time. */
  readonly width: number
}

export interface Done {
  readonly ms: number
  /** Times of round trips or connections in µs, sorted. */
  readonly samples: readonly number[]
}

const [role, argument] = process.argv.slice(2)
const block = Buffer.alloc(256 * 1024, 'x')

if (role === 'endpoint') await endpoint()
else if (role === 'relay') await relay(Number(argument))
else if (role === 'client') client()
process.on('disconnect', () => process.exit())

/** The first byte of a connection says what it is for: d is a download, u an upload, everything else is sent back. */
async function endpoint(): Promise<void> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    socket.on('error', () => socket.destroy())
    socket.once('data', (first) => {
      if (first[0] === 0x64) return send(socket, Number(first.toString().slice(1)))
      if (first[0] === 0x75) {
        socket.on('data', () => {})
        socket.on('end', () => socket.end('!'))
        return
      }
      socket.write(first)
      socket.on('data', (chunk) => socket.write(chunk))
      socket.on('end', () => socket.end())
    })
  })
  server.listen({ port: 0, host: '127.0.0.1', backlog: 4096 })
  await once(server, 'listening')
  const address = server.address()
  process.send?.({ port: typeof address === 'object' ? address?.port : 0 })
}

async function relay(target: number): Promise<void> {
  const balancer = new Balancer(Math.random, () => performance.now())
  balancer.update([`127.0.0.1:${target}`], 0)
  const running = await relayTcp({ host: '127.0.0.1', port: 0, balancer, log: silentLogger })
  process.send?.({ port: running.port })
  process.on('message', () => {
    globalThis.gc?.()
    process.send?.({ active: running.active, rss: process.memoryUsage.rss() })
  })
}

function send(socket: Socket, bytes: number): void {
  let left = bytes
  const more = () => {
    while (left > 0) {
      const part = left >= block.length ? block : block.subarray(0, left)
      left -= part.length
      if (!socket.write(part)) return void socket.once('drain', more)
    }
    socket.end()
  }
  more()
}

function client(): void {
  const idle: Socket[] = []
  process.on('message', async (task: Task) => {
    const begun = performance.now()
    let samples: number[] = []
    if (task.kind === 'idle') await holdIdle(task, idle)
    else if (task.kind === 'close') for (const socket of idle.splice(0)) socket.destroy()
    else samples = (await Promise.all(Array.from({ length: task.width }, () => one(task)))).flat()
    const ms = performance.now() - begun
    process.send?.({ ms, samples: samples.sort((a, b) => a - b) } satisfies Done)
  })
}

async function one({ kind, port, amount }: Task): Promise<number[]> {
  if (kind === 'ping') return await ping(port, amount)
  if (kind === 'connect') return await connects(port, amount)
  const buffer = Buffer.alloc(1024 * 1024)
  let got = 0
  const socket = createConnection({
    port,
    host: '127.0.0.1',
    allowHalfOpen: true,
    onread: {
      buffer,
      callback: (bytes) => {
        got += bytes
        return true
      },
    },
  })
  const ended = once(socket, 'end')
  if (kind === 'download') socket.write(`d${amount}`)
  else {
    // Sent alone, so that the endpoint can read it before the data.
    socket.write('u')
    await new Promise((resolve) => setTimeout(resolve, 50))
    send(socket, amount)
  }
  await ended
  socket.end()
  if (kind === 'download' && got !== amount) throw new Error(`${got} bytes instead of ${amount}`)
  return []
}

async function ping(port: number, amount: number): Promise<number[]> {
  const socket = createConnection({ port, host: '127.0.0.1', noDelay: true })
  await once(socket, 'connect')
  const samples: number[] = []
  const byte = Buffer.from('p')
  await new Promise<void>((resolve) => {
    let begun = performance.now()
    socket.on('data', () => {
      const now = performance.now()
      samples.push((now - begun) * 1000)
      if (samples.length === amount) return resolve()
      begun = performance.now()
      socket.write(byte)
    })
    socket.write(byte)
  })
  socket.destroy()
  return samples
}

/** Connects, sends one byte and waits for it, closes. */
async function connects(port: number, amount: number): Promise<number[]> {
  const samples: number[] = []
  for (let i = 0; i < amount; i++) {
    const begun = performance.now()
    const socket = createConnection({ port, host: '127.0.0.1', noDelay: true })
    socket.write('c')
    await once(socket, 'data')
    samples.push((performance.now() - begun) * 1000)
    socket.destroy()
  }
  return samples
}

/** Few at once: an emulated CPU must finish them before the relay takes the endpoint for dead. */
const atOnce = 10

async function holdIdle({ port, amount }: Task, idle: Socket[]): Promise<void> {
  for (let i = 0; i < amount; i += atOnce) {
    await Promise.all(
      Array.from({ length: Math.min(atOnce, amount - i) }, async (_, j) => {
        // One source address does not have enough ports for all.
        const localAddress = `127.0.1.${1 + ((i + j) % 8)}`
        const socket = createConnection({ port, host: '127.0.0.1', localAddress, noDelay: true })
        socket.on('error', () => {})
        socket.write('i')
        await once(socket, 'data')
        idle.push(socket)
      }),
    )
  }
}
