// Runs a program in a container through the API server, and gives its standard input and output as one stream. Kubernetes multiplexes
// them over a WebSocket: the first byte of each message is the number of a channel.

import { createHash, randomBytes } from 'node:crypto'
import { Socket } from 'node:net'
import { Duplex } from 'node:stream'
import { ProxyError } from '../../lib/errors.ts'
import type { Client } from '../client.ts'
import { asObject, readString } from '../decode/fields.ts'
import type { UpgradedConnection } from '../transport.ts'
import { encodeFrame, type Frame, FrameReader, opcodes } from './websocket-frames.ts'

export interface ExecTarget {
  readonly namespace: string
  readonly pod: string
  readonly container: string
  readonly command: readonly string[]
}

const channels = { input: 0, output: 1, errors: 2, status: 3 } as const

/** The oldest protocol that reports how the program ended. Version 5 only adds that the input alone can be closed, which nothing here needs. */
const protocol = 'v4.channel.k8s.io'
const acceptSuffix = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
/** How much of the standard error is kept for a message. */
const maxErrorText = 2_000

/** Throws a ProxyError if the API server refuses, or if the kubelet cannot start the program. */
export async function openExecStream(client: Pick<Client, 'upgrade'>, target: ExecTarget): Promise<ExecStream> {
  const { namespace, pod, container, command } = target
  const key = randomBytes(16).toString('base64')
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(pod)}/exec`
  const query = { command, container, stdin: 'true', stdout: 'true', stderr: 'true' }
  const connection = await client.upgrade(
    { path, query },
    {
      connection: 'Upgrade',
      upgrade: 'websocket',
      'sec-websocket-version': '13',
      'sec-websocket-key': key,
      'sec-websocket-protocol': protocol,
    },
  )
  const { headers } = connection.response
  const accepted = createHash('sha1').update(`${key}${acceptSuffix}`).digest('base64')
  if (headers['sec-websocket-accept'] !== accepted || headers['sec-websocket-protocol'] !== protocol) {
    connection.socket.destroy()
    throw new ProxyError('bad-response', `${path}: the answer is not a WebSocket of the protocol ${protocol}`)
  }
  return new ExecStream(connection)
}

/** The program's standard output can be read, and its standard input written. */
export class ExecStream extends Duplex {
  readonly #socket: Duplex
  readonly #frames = new FrameReader()
  #message: Buffer[] = []
  #errorText = ''

  constructor({ socket, head }: UpgradedConnection) {
    super({ allowHalfOpen: false })
    this.#socket = socket
    if (head.length > 0) socket.unshift(head)
    socket.on('data', (bytes: Buffer) => this.#receive(bytes))
    socket.on('error', (error) => this.destroy(error))
    socket.on('close', () => this.#end())
  }

  /** An idle connection does not keep the process alive. */
  ref(): this {
    if (this.#socket instanceof Socket) this.#socket.ref()
    return this
  }

  unref(): this {
    if (this.#socket instanceof Socket) this.#socket.unref()
    return this
  }

  override _read(): void {
    this.#socket.resume()
  }

  override _write(chunk: Buffer, _: string, done: (error?: Error | null) => void): void {
    this.#send(opcodes.binary, Buffer.concat([Buffer.of(channels.input), chunk]), done)
  }

  /** The program sees the end of its input when the connection ends. */
  override _final(done: () => void): void {
    done()
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    if (this.#socket.writable) {
      this.#send(opcodes.close, Buffer.of(0x03, 0xe8), () => this.#socket.destroy())
    } else this.#socket.destroy()
    done(error)
  }

  #send(opcode: number, payload: Uint8Array, done?: (error?: Error | null) => void): void {
    this.#socket.write(encodeFrame(opcode, payload, randomBytes(4)), done)
  }

  #receive(bytes: Buffer): void {
    try {
      for (const frame of this.#frames.read(bytes)) this.#accept(frame)
    } catch (error) {
      this.destroy(error instanceof Error ? error : new Error(String(error)))
    }
  }

  #accept({ opcode, isLast, payload }: Frame): void {
    if (opcode === opcodes.ping) this.#send(opcodes.pong, payload)
    else if (opcode === opcodes.close) this.#socket.end()
    else if (opcode <= opcodes.binary) {
      this.#message.push(payload)
      if (!isLast) return
      const message = this.#message.length === 1 ? payload : Buffer.concat(this.#message)
      this.#message = []
      this.#deliver(message[0], message.subarray(1))
    }
  }

  #deliver(channel: number | undefined, data: Buffer): void {
    if (channel === channels.output && data.length > 0 && !this.push(data)) this.#socket.pause()
    if (channel === channels.errors && this.#errorText.length < maxErrorText) this.#errorText += data.toString('utf8')
    if (channel === channels.status && data.length > 0) this.#finish(data.toString('utf8'))
  }

  /** The program has ended, or it could not be started. */
  #finish(text: string): void {
    const message = readFailure(text)
    const detail = this.#errorText.trim().slice(0, maxErrorText)
    if (message === undefined) this.#end()
    else this.destroy(new ProxyError('exec', detail === '' ? message : `${message}: ${detail}`))
  }

  #end(): void {
    if (!this.readableEnded && !this.destroyed) this.push(null)
  }
}

/** Returns why the program failed; undefined if it ended with status 0. */
function readFailure(text: string): string | undefined {
  try {
    const status = asObject(JSON.parse(text))
    if (status?.status === 'Success') return undefined
    return readString(status, 'message') || 'the program failed'
  } catch {
    return text.slice(0, 500)
  }
}
