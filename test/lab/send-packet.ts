// The client side of the lab: sends one connection or datagram from a given source, and reports what happened to it.

import { createSocket } from 'node:dgram'
import { Socket } from 'node:net'
import { constants } from 'node:os'
import { familyOf, hostPort } from '../../src/lib/ip.ts'
import type { Protocol } from '../../src/model/types.ts'
import type { Answer, Arrivals } from './echo-servers.ts'
import type { Namespace } from './namespace.ts'
import { sendSctpInit } from './sctp.ts'

export type Reply =
  /** The packet was redirected: an endpoint other than the dialled address answered. */
  | { readonly kind: 'reached'; readonly endpoint: string; readonly seenAs: string; readonly sentAs: string }
  /** The packet was not redirected: the owner of the address, or a sink, answered. */
  | { readonly kind: 'passed'; readonly where: string }
  /** An error came back: ECONNREFUSED for a port unreachable or a reset. */
  | { readonly kind: 'rejected'; readonly code: string }
  /** Nothing came back. `arrived` is true if a server received the datagram, so that only the answer was lost. */
  | { readonly kind: 'dropped'; readonly arrived: boolean }

export interface Packet {
  readonly from: string
  readonly sourcePort: number
  readonly to: string
  readonly port: number
  readonly protocol: Protocol
  readonly timeoutMs: number
}

let serial = 0

const resendMs = 1000

export function sendPacket(namespace: Namespace, packet: Packet, arrivals: Arrivals): Promise<Reply> {
  if (packet.protocol === 'sctp') return sendSctpInTurn(namespace, packet)
  const fd = namespace.openSocket(packet.protocol, packet.from, packet.sourcePort)
  return packet.protocol === 'tcp' ? connectTcp(fd, packet) : sendUdp(fd, packet, arrivals)
}

function connectTcp(fd: number, packet: Packet): Promise<Reply> {
  return new Promise((resolve) => {
    const socket = new Socket({ fd })
    let text = ''
    const timer = afterSilence(packet.timeoutMs, () => finish({ kind: 'dropped', arrived: false }))
    const finish = (reply: Reply) => {
      timer.cancel()
      socket.destroy()
      resolve(reply)
    }
    socket.setEncoding('utf8')
    socket.on('data', (chunk) => {
      text += chunk
    })
    socket.on('end', () => finish(interpretAnswer(text, packet)))
    socket.on('error', (error: NodeJS.ErrnoException) => finish({ kind: 'rejected', code: error.code ?? '' }))
    socket.connect({ host: packet.to, port: packet.port })
  })
}

function sendUdp(fd: number, packet: Packet, arrivals: Arrivals): Promise<Reply> {
  const id = `${process.pid}-${serial++}`
  return new Promise((resolve) => {
    const socket = createSocket(familyOf(packet.from) === 6 ? 'udp6' : 'udp4')
    const timer = afterSilence(packet.timeoutMs, () => finish({ kind: 'dropped', arrived: arrivals.has(id) }))
    // UDP clients send again, and TCP does so by itself.
    const again = setInterval(() => socket.send(id, refused), resendMs)
    let done = false
    const finish = (reply: Reply) => {
      if (done) return
      done = true
      timer.cancel()
      clearInterval(again)
      arrivals.delete(id)
      socket.close()
      resolve(reply)
    }
    const refused = (error: NodeJS.ErrnoException | null) => {
      // The sender gets EPERM at once if a rule of the output hook drops or rejects the packet.
      // Only a rejection is followed by an ICMP error.
      if (error !== null && error.code !== 'EPERM') finish({ kind: 'rejected', code: error.code ?? '' })
    }
    socket.on('message', (message) => finish(interpretAnswer(message.toString(), packet)))
    socket.on('error', refused)
    socket.bind({ fd }, () => {
      if (!done) socket.connect(packet.port, packet.to, () => done || socket.send(id, refused))
    })
  })
}

/** Raw sockets receive each other's errors, so only one packet is sent at a time. */
let sctpTurn: Promise<unknown> = Promise.resolve()

function sendSctpInTurn(namespace: Namespace, packet: Packet): Promise<Reply> {
  const turn = sctpTurn.then(async (): Promise<Reply> => {
    const result = await sendSctpInit(namespace, packet)
    if (result === undefined) return { kind: 'dropped', arrived: false }
    if (typeof result === 'string') return interpretAnswer(result, packet)
    const refused = result === constants.errno.ECONNREFUSED
    return { kind: 'rejected', code: refused ? 'ECONNREFUSED' : `errno ${result}` }
  })
  sctpTurn = turn.catch(() => undefined)
  return turn
}

function interpretAnswer(text: string, packet: Packet): Reply {
  if (text === '') return { kind: 'rejected', code: 'no answer' }
  const { server, peer, sink } = JSON.parse(text) as Answer
  if (sink !== '') return { kind: 'passed', where: sink }
  if (server === hostPort(packet.to, packet.port)) return { kind: 'passed', where: server }
  return { kind: 'reached', endpoint: server, seenAs: peer, sentAs: hostPort(packet.from, packet.sourcePort) }
}

/** Runs after `ms`, and after two more turns of the event loop: a busy process may have an answer that it has not read yet. */
function afterSilence(ms: number, run: () => void): { cancel(): void } {
  let immediate: NodeJS.Immediate | undefined
  const timer = setTimeout(() => {
    immediate = setImmediate(() => {
      immediate = setImmediate(run)
    })
  }, ms)
  return {
    cancel() {
      clearTimeout(timer)
      if (immediate !== undefined) clearImmediate(immediate)
    },
  }
}
