// An API server on loopback that misbehaves as a seed says: it answers each request in its own way, until it is told to behave.

import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import type { Random } from './random.ts'

interface Stored {
  readonly metadata: { readonly namespace: string; readonly name: string; readonly resourceVersion: string }
}

/** What a good server would send: a list, or the lines of a watch that stays open. */
interface GoodAnswer {
  readonly isWatch: boolean
  readonly parts: readonly string[]
}

type Misbehaviour = (reply: Reply) => Promise<void> | void

const statuses = [
  100, 102, 204, 206, 301, 302, 307, 308, 400, 401, 403, 404, 405, 406, 409, 410, 422, 429, 500, 502, 503, 504, 599,
]
const contentTypes = [
  '',
  'text/html',
  'application/vnd.kubernetes.protobuf',
  'application/json; charset=utf-16',
  'application/json;stream=watch',
  'x',
]
const oddLines = [
  '',
  ' ',
  '{}',
  '[]',
  'null',
  '{"type":"ADDED","object":{}}',
  '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":""}}}',
  '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"-1"}}}',
  '{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}',
  '{"type":"ERROR","object":{"kind":"Status","code":410}}',
  '{"type":"ERROR","object":{"kind":"Status","code":500,"message":"x"}}',
  '{"type":"DELETED","object":{"metadata":{"namespace":"ns","name":"svc-0","resourceVersion":"1"}}}',
  '{"type":"ADDED","object":{"metadata":{"namespace":"ns","name":"phantom","resourceVersion":"2"},"spec":{}}}',
]

class Reply {
  readonly random: Random
  readonly response: ServerResponse
  readonly good: GoodAnswer

  constructor(random: Random, response: ServerResponse, good: GoodAnswer) {
    this.random = random
    this.response = response
    this.good = good
  }

  get body(): Buffer {
    return Buffer.from(this.good.parts.join(''))
  }

  get socket(): Socket | null {
    return this.response.socket
  }

  begin(headers: Readonly<Record<string, string>> = {}, status = 200): void {
    this.response.writeHead(status, { 'content-type': 'application/json', ...headers })
  }

  /** Sends the bytes in pieces of random sizes. A character may be cut. */
  async sendInPieces(bytes: Buffer): Promise<void> {
    for (let at = 0; at < bytes.length && !this.response.destroyed; ) {
      const end = at + this.random.between(1, this.random.chance(0.5) ? 20 : 5000)
      this.response.write(bytes.subarray(at, end))
      at = end
      if (this.random.chance(0.1)) await sleep(1)
    }
  }

  /** A watch stays open after a good answer; the others end. */
  finish(): void {
    if (!this.good.isWatch) this.response.end()
  }
}

const cutAfterwards = async ({ socket }: Reply): Promise<void> => {
  await sleep(2)
  socket?.destroy()
}

function mutateBytes(bytes: Buffer, random: Random): Buffer {
  const changed = Buffer.from(bytes)
  for (let i = random.between(1, 6); i > 0 && changed.length > 0; i--) {
    changed[random.between(0, changed.length)] = random.between(0, 256)
  }
  return changed
}

const misbehaviours: Readonly<Record<string, Misbehaviour>> = {
  async pieces(reply) {
    reply.begin()
    await reply.sendInPieces(reply.body)
    reply.finish()
  },
  async truncated(reply) {
    reply.begin()
    const { body, random } = reply
    await reply.sendInPieces(body.subarray(0, random.between(0, body.length)))
    await cutAfterwards(reply)
  },
  'ended early'(reply) {
    reply.begin()
    const { body, random } = reply
    reply.response.end(body.subarray(0, random.between(0, body.length)))
  },
  async 'merged lines'(reply) {
    reply.begin()
    reply.response.write(reply.body.toString().replaceAll('\n', reply.random.chance(0.5) ? '' : '\r\n\r\n'))
    reply.finish()
  },
  'repeated parts'(reply) {
    reply.begin()
    for (const part of reply.good.parts) {
      for (let i = reply.random.between(1, 4); i > 0; i--) reply.response.write(part)
    }
    reply.finish()
  },
  'shuffled parts'(reply) {
    reply.begin()
    for (const part of reply.good.parts.toSorted(() => reply.random.next() - 0.5)) reply.response.write(part)
    reply.finish()
  },
  'odd lines'(reply) {
    reply.begin()
    for (const part of reply.good.parts) {
      if (reply.random.chance(0.5)) reply.response.write(`${reply.random.choose(oddLines)}\n`)
      reply.response.write(part)
    }
    reply.finish()
  },
  'changed bytes'(reply) {
    reply.begin()
    reply.response.write(mutateBytes(reply.body, reply.random))
    reply.finish()
  },
  'random bytes'(reply) {
    reply.begin()
    reply.response.end(mutateBytes(Buffer.alloc(reply.random.between(0, 3000)), reply.random))
  },
  compressed(reply) {
    const { random, body } = reply
    const [name, bytes] = random.choose<readonly [string, Buffer]>([
      ['gzip', gzipSync(body)],
      ['gzip', gzipSync(body).subarray(0, random.between(0, 40))],
      ['gzip', body],
      ['gzip', mutateBytes(gzipSync(body), random)],
      ['gzip', Buffer.concat([gzipSync(body), gzipSync(body)])],
      ['gzip', gzipSync(Buffer.alloc(40 << 20, ' '))],
      ['deflate', deflateSync(body)],
      ['br', brotliCompressSync(body)],
      ['gzip, gzip', gzipSync(gzipSync(body))],
    ])
    reply.begin({ 'content-encoding': name })
    reply.response.end(bytes)
  },
  'wrong content type'(reply) {
    reply.begin({ 'content-type': reply.random.choose(contentTypes) })
    reply.response.write(reply.body)
    reply.finish()
  },
  'odd status'(reply) {
    const { random, response } = reply
    const status = random.choose(statuses)
    const headers = {
      location: random.choose(['/', 'http://127.0.0.1:1/', '//x', 'javascript:0', response.req.url ?? '']),
      'retry-after': random.choose(['0', '1', '-1', 'x', '1e9', '99999999']),
    }
    const text = random.choose([
      '',
      'no',
      '<html>',
      JSON.stringify({ kind: 'Status', code: status, reason: 'X', details: [] }),
    ])
    if (status < 200) return void reply.socket?.end(`HTTP/1.1 ${status} X\r\n\r\nHTTP/1.1 200 OK\r\n\r\n${text}`)
    reply.begin(headers, status)
    reply.response.end(status === 204 ? '' : text)
  },
  'endless pages'(reply) {
    reply.begin()
    const metadata = { resourceVersion: '1', continue: String(reply.random.next()) }
    reply.response.end(JSON.stringify({ kind: 'List', metadata, items: [] }))
  },
  'list instead of a watch, or the other way round'(reply) {
    reply.begin()
    if (reply.good.isWatch) reply.response.end('{"kind":"List","metadata":{"resourceVersion":"1"},"items":[]}')
    else reply.response.end('{"type":"ADDED","object":{}}\n')
  },
  async 'slow body'(reply) {
    reply.begin()
    for (const byte of reply.body.subarray(0, reply.random.between(1, 60))) {
      if (reply.response.destroyed) return
      reply.response.write(Buffer.of(byte))
      await sleep(3)
    }
    reply.socket?.destroy()
  },
  async silence(reply) {
    if (reply.random.chance(0.5)) reply.begin()
    await sleep(reply.random.between(1, 200))
    reply.socket?.destroy()
  },
  'closed at once'({ socket }) {
    socket?.destroy()
  },
  'not HTTP'({ socket, random }) {
    socket?.end(
      random.choose([
        'SSH-2.0-x\r\n',
        'HTTP/9.9 200 OK\r\n\r\n',
        'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!',
        'HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n',
        'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n',
        'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n',
        `HTTP/1.1 200 OK\r\nX: ${'x'.repeat(100_000)}\r\n\r\n`,
        'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n',
      ]),
    )
  },
}

export class BadServer {
  requests = 0
  isGood = false
  readonly #random: Random
  readonly #server: Server
  /** By path of the collection, then by name. */
  readonly #objects = new Map<string, Map<string, Stored>>()
  readonly #watches = new Map<ServerResponse, string>()
  #version = 1000
  /** Whether content was changed without a new version, which clients take for the same content. */
  #hasLied = false

  constructor(random: Random) {
    this.#random = random
    this.#server = createServer((request, response) => {
      this.requests++
      response.on('error', () => undefined)
      void this.#answer(request, response).catch(() => response.socket?.destroy())
    })
  }

  async start(): Promise<string> {
    this.#server.listen(0, '127.0.0.1')
    await once(this.#server, 'listening')
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
  }

  put(path: string, name: string, object: object): void {
    const resourceVersion = String(++this.#version)
    const metadata = { ...(object as Partial<Stored>).metadata, namespace: 'ns', name, uid: name, resourceVersion }
    const type = this.#collection(path).has(name) ? 'MODIFIED' : 'ADDED'
    const stored = { ...object, metadata }
    this.#collection(path).set(name, stored)
    this.#send(path, { type, object: stored })
  }

  drop(path: string, name: string): void {
    const object = this.#collection(path).get(name)
    if (object === undefined) return
    this.#collection(path).delete(name)
    const metadata = { ...object.metadata, resourceVersion: String(++this.#version) }
    this.#send(path, { type: 'DELETED', object: { ...object, metadata } })
  }

  /** Cuts all connections. From now on every answer is good. Clients have missed something, so that they need a snapshot. */
  behave(): void {
    this.isGood = true
    this.#version++
    if (this.#hasLied) this.#renewVersions()
    this.#server.closeAllConnections()
  }

  #renewVersions(): void {
    for (const [path, objects] of this.#objects) for (const [name, object] of objects) this.put(path, name, object)
  }

  #collection(path: string): Map<string, Stored> {
    const known = this.#objects.get(path) ?? new Map<string, Stored>()
    this.#objects.set(path, known)
    return known
  }

  #send(path: string, event: object): void {
    for (const [response, watched] of this.#watches) if (watched === path) response.write(`${JSON.stringify(event)}\n`)
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', 'http://server')
    const good = this.#compose(url)
    if (good.isWatch) {
      this.#watches.set(response, url.pathname)
      response.on('close', () => this.#watches.delete(response))
    }
    const reply = new Reply(this.#random, response, good)
    if (!this.isGood && this.#random.chance(0.8)) {
      const name = this.#random.choose(Object.keys(misbehaviours))
      if (name === 'changed bytes') this.#hasLied = true
      await misbehaviours[name]?.(reply)
      return
    }
    reply.begin()
    for (const part of good.parts) response.write(part)
    // An expired watch ends with its error.
    if (good.isWatch && !good.parts.some((part) => part.includes('"ERROR"'))) response.flushHeaders()
    else response.end()
  }

  #compose({ pathname, searchParams }: URL): GoodAnswer {
    const items = [...this.#collection(pathname).values()]
    const metadata = { resourceVersion: String(this.#version) }
    if (!searchParams.has('watch')) return { isWatch: false, parts: splitList(metadata, items) }
    const line = (event: object) => `${JSON.stringify(event)}\n`
    if (searchParams.get('sendInitialEvents') === 'true') {
      const annotations = { 'k8s.io/initial-events-end': 'true' }
      const end = { type: 'BOOKMARK', object: { metadata: { ...metadata, annotations } } }
      return { isWatch: true, parts: [...items.map((object) => line({ type: 'ADDED', object })), line(end)] }
    }
    if (searchParams.get('resourceVersion') === metadata.resourceVersion) return { isWatch: true, parts: [] }
    // There is no history: a client that missed changes needs a snapshot.
    const object = { kind: 'Status', status: 'Failure', reason: 'Expired', code: 410 }
    return { isWatch: true, parts: [line({ type: 'ERROR', object })] }
  }
}

/** A list in pieces, so that the misbehaviours can repeat and shuffle them. */
function splitList(metadata: object, items: readonly Stored[]): readonly string[] {
  const texts = items.map((item, i) => `${i === 0 ? '' : ','}${JSON.stringify(item)}`)
  return [`{"kind":"List","metadata":${JSON.stringify(metadata)},"items":[`, ...texts, ']}']
}
