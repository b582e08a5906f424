// The prober's client side: one connection or datagram from a given source, and what became of it.

import { createSocket } from 'node:dgram'
import { Socket } from 'node:net'
import { constants } from 'node:os'
import { familyOf, hostPort } from '../../src/lib/ip.ts'
import type { Protocol } from '../../src/model/types.ts'
import type { Answer, Arrivals } from './echo.ts'
import type { Namespace } from './namespace.ts'
import { shootSctp } from './sctp.ts'

export type Reply =
  /** An endpoint other than the address that was dialled: somebody redirected the packet. */
  | { readonly kind: 'reached'; readonly endpoint: string; readonly seenAs: string; readonly sentAs: string }
  /** Nobody redirected it: it came to whoever has the address, or to a catch-all. */
  | { readonly kind: 'passed'; readonly where: string }
  /** An error came back: ECONNREFUSED for a port unreachable or a reset. */
  | { readonly kind: 'rejected'; readonly code: string }
  /** Silence. `arrived`: yet a server got the datagram, so only the answer was lost. */
  | { readonly kind: 'dropped'; readonly arrived: boolean }

export interface Shot {
  readonly from: string
  readonly sourcePort: number
  readonly to: string
  readonly port: number
  readonly protocol: Protocol
  readonly timeoutMs: number
}

let serial = 0

const resendMs = 1000

export function shoot(namespace: Namespace, shot: Shot, arrivals: Arrivals): Promise<Reply> {
  if (shot.protocol === 'sctp') return shootSctpInTurn(namespace, shot)
  const fd = namespace.openSocket(shot.protocol, shot.from, shot.sourcePort)
  return shot.protocol === 'tcp' ? shootTcp(fd, shot) : shootUdp(fd, shot, arrivals)
}

function shootTcp(fd: number, shot: Shot): Promise<Reply> {
  return new Promise((resolve) => {
    const socket = new Socket({ fd })
    let text = ''
    const timer = afterSilence(shot.timeoutMs, () => finish({ kind: 'dropped', arrived: false }))
    const finish = (reply: Reply) => {
      timer.cancel()
      socket.destroy()
      resolve(reply)
    }
    socket.setEncoding('utf8')
    socket.on('data', (chunk) => {
      text += chunk
    })
    socket.on('end', () => finish(understand(text, shot)))
    socket.on('error', (error: NodeJS.ErrnoException) => finish({ kind: 'rejected', code: error.code ?? '' }))
    socket.connect({ host: shot.to, port: shot.port })
  })
}

function shootUdp(fd: number, shot: Shot, arrivals: Arrivals): Promise<Reply> {
  const id = `${process.pid}-${serial++}`
  return new Promise((resolve) => {
    const socket = createSocket(familyOf(shot.from) === 6 ? 'udp6' : 'udp4')
    const timer = afterSilence(shot.timeoutMs, () => finish({ kind: 'dropped', arrived: arrivals.has(id) }))
    // As clients of UDP do, and as TCP does by itself.
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
      // The sender of a packet that is stopped on its way out hears EPERM at once, be it dropped or rejected;
      // a rejection is told apart by the ICMP error that follows.
      if (error !== null && error.code !== 'EPERM') finish({ kind: 'rejected', code: error.code ?? '' })
    }
    socket.on('message', (message) => finish(understand(message.toString(), shot)))
    socket.on('error', refused)
    socket.bind({ fd }, () => {
      if (!done) socket.connect(shot.port, shot.to, () => done || socket.send(id, refused))
    })
  })
}

/** Raw sockets hear each other's errors: one shot at a time. */
let sctpTurn: Promise<unknown> = Promise.resolve()

function shootSctpInTurn(namespace: Namespace, shot: Shot): Promise<Reply> {
  const turn = sctpTurn.then(async (): Promise<Reply> => {
    const result = await shootSctp(namespace, shot)
    if (result === undefined) return { kind: 'dropped', arrived: false }
    if (typeof result === 'string') return understand(result, shot)
    const refused = result === constants.errno.ECONNREFUSED
    return { kind: 'rejected', code: refused ? 'ECONNREFUSED' : `errno ${result}` }
  })
  sctpTurn = turn.catch(() => undefined)
  return turn
}

function understand(text: string, shot: Shot): Reply {
  if (text === '') return { kind: 'rejected', code: 'no answer' }
  const { server, peer, sink } = JSON.parse(text) as Answer
  if (sink !== '') return { kind: 'passed', where: sink }
  if (server === hostPort(shot.to, shot.port)) return { kind: 'passed', where: server }
  return { kind: 'reached', endpoint: server, seenAs: peer, sentAs: hostPort(shot.from, shot.sourcePort) }
}

/** A timer which, when the process was too busy to look, looks once more before it calls it silence. */
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
