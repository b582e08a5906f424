// A stand-in for the kubelet's exec endpoint: answers the WebSocket protocol v4.channel.k8s.io with a program of the test's choice. It
// does not start containers, and no kubelet's own code runs; the cluster tier has real kubelets.

import { createHash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { Duplex, Readable, Writable } from 'node:stream'

export interface ExecProgram {
  readonly input: Writable
  readonly output: Readable
  /** Resolves with '' for success, else with the message of the failure. */
  readonly ended: Promise<string>
  kill(): void
}

/** `command` comes from the query. Returns undefined if the program cannot be started. */
export type StartProgram = (command: readonly string[], path: string) => ExecProgram | undefined

export function serveExec(request: IncomingMessage, socket: Duplex, start: StartProgram): void {
  const url = new URL(request.url ?? '', 'http://kubelet')
  const accept = createHash('sha1')
    .update(`${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
    .digest('base64')
  socket.write(
    [
      'HTTP/1.1 101 Switching Protocols',
      'Upgrade: websocket',
      'Connection: Upgrade',
      `Sec-WebSocket-Accept: ${accept}`,
      'Sec-WebSocket-Protocol: v4.channel.k8s.io',
      '\r\n',
    ].join('\r\n'),
  )
  socket.on('error', () => socket.destroy())
  const finish = (failure: string) => {
    const status = failure === '' ? { status: 'Success' } : { status: 'Failure', message: failure }
    sendMessage(socket, 3, Buffer.from(JSON.stringify(status)))
    socket.end(frame(8, Buffer.of(3, 232)))
  }
  const command = url.searchParams.getAll('command')
  const program = start(command, url.pathname)
  if (program === undefined) {
    finish(`exec: "${command[0]}": executable file not found in $PATH: unknown`)
    return
  }
  program.output.on('data', (bytes: Buffer) => sendMessage(socket, 1, bytes))
  program.ended.then(finish, () => finish('the program failed'))
  const reader = readFrames((opcode, payload) => {
    if (opcode === 8) socket.end()
    else if (payload[0] === 0) program.input.write(payload.subarray(1))
  })
  socket.on('data', reader)
  socket.on('close', () => {
    program.input.end()
    program.kill()
  })
}

/** Sends in small pieces, each with its channel, and some of them as two frames, as RFC 6455 allows. */
function sendMessage(socket: Duplex, channel: number, bytes: Buffer): void {
  for (let at = 0; at < bytes.length; at += 8_000) {
    const message = Buffer.concat([Buffer.of(channel), bytes.subarray(at, at + 8_000)])
    if (message.length < 200) socket.write(frame(2, message))
    else
      socket.write(
        Buffer.concat([frame(2, message.subarray(0, 100), false), frame(9), frame(0, message.subarray(100))]),
      )
  }
}

function frame(opcode: number, payload: Uint8Array = Buffer.alloc(0), isLast = true): Buffer {
  const long = payload.length >= 126
  const head = Buffer.alloc(long ? 4 : 2)
  head[0] = (isLast ? 0x80 : 0) | opcode
  head[1] = long ? 126 : payload.length
  if (long) head.writeUInt16BE(payload.length, 2)
  return Buffer.concat([head, payload])
}

/** Calls back for every frame of a client, unmasked. */
function readFrames(onFrame: (opcode: number, payload: Buffer) => void): (bytes: Buffer) => void {
  let rest = Buffer.alloc(0)
  return (bytes) => {
    rest = Buffer.concat([rest, bytes])
    while (rest.length >= 2) {
      const short = (rest[1] as number) & 0x7f
      if (((rest[1] as number) & 0x80) === 0) throw new Error('a client must mask its frames')
      const extra = { 126: 2, 127: 8 }[short] ?? 0
      if (rest.length < 2 + extra) return
      let length = short
      if (extra === 2) length = rest.readUInt16BE(2)
      if (extra === 8) length = Number(rest.readBigUInt64BE(2))
      const start = 2 + extra + 4
      if (rest.length < start + length) return
      const mask = rest.subarray(start - 4, start)
      const payload = Buffer.from(rest.subarray(start, start + length).map((byte, i) => byte ^ (mask[i & 3] as number)))
      const opcode = (rest[0] as number) & 0x0f
      rest = rest.subarray(start + length)
      onFrame(opcode, payload)
    }
  }
}
