// Connects a client to an endpoint: tries endpoints in turn with growing timeouts, and separates faults of this machine from faults of endpoints.

import { createConnection, type Socket } from 'node:net'
import { hasErrno, ProxyError } from '../../lib/errors.ts'
import { splitHostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Balancer, skipMs } from './balancer.ts'
import type { DialReports } from './dial-reports.ts'
import { judgeDial } from './flow-ends.ts'
import type { FlowRecord } from './flow-reports.ts'
import type { ShedReason } from './relay.ts'
import { readInto } from './tcp-copy.ts'

/** How long each attempt may take; each attempt goes to the next endpoint. */
const dialTimeoutsMs: readonly number[] = [250, 500, 1000, 2000]

/** If others decide about an endpoint that does not answer, they need more than one failure in ten seconds to do so. */
const watchedSkipMs = 500

/** An endpoint that refuses at once costs no time, only a connection attempt; one client must not cause hundreds of them. */
const maxDials = 16

/** Keep-alive finds peers that vanished without closing: nothing else would end a relayed connection. */
export const socketOptions = {
  allowHalfOpen: true,
  noDelay: true,
  keepAlive: true,
  keepAliveInitialDelay: 15_000,
} as const

export interface DialRequest {
  readonly client: Socket
  readonly clientIp: string
  readonly balancer: Balancer
  readonly dials: DialReports | undefined
  readonly flow: FlowRecord | undefined
  readonly log: Logger
}

/** Returns a connected socket, the reason why there is none, or undefined if the client has gone meanwhile. */
export async function dialAnyEndpoint(request: DialRequest): Promise<Socket | ShedReason | undefined> {
  const { client, clientIp, balancer } = request
  const failed = new Set<string>()
  let timeouts = 0
  for (let dials = 0; dials < maxDials && timeouts < dialTimeoutsMs.length && !client.destroyed; dials++) {
    const endpoint = balancer.pick(clientIp, failed)
    if (endpoint === undefined) {
      // If all endpoints refused, that is the answer. If one was only slow, it is tried again with a longer timeout.
      if (timeouts === 0 || failed.size === 0) break
      failed.clear()
      continue
    }
    request.flow?.begin(endpoint)
    const result = await dialOne(endpoint, dialTimeoutsMs[timeouts] as number, request)
    if (result !== 'refused' && result !== 'timeout') return result
    failed.add(endpoint)
    if (result === 'timeout') timeouts++
  }
  return client.destroyed ? undefined : 'dial'
}

async function dialOne(
  endpoint: string,
  timeoutMs: number,
  { client, balancer, dials, flow, log }: DialRequest,
): Promise<Socket | ShedReason | 'refused' | 'timeout'> {
  try {
    const socket = await dial(endpoint, client, timeoutMs)
    balancer.markResponsive(endpoint)
    dials?.report(endpoint, 'answered')
    return socket
  } catch (error) {
    const ownFault = classifyOwnFault(error)
    if (ownFault !== undefined) return ownFault
    flow?.end(() => judgeDial(error))
    log.v(2, 'An endpoint did not answer', { endpoint, error })
    if (!(error instanceof ProxyError)) {
      dials?.report(endpoint, 'refused')
      return 'refused'
    }
    balancer.markUnresponsive(endpoint, dials?.report(endpoint, 'unanswered') === true ? watchedSkipMs : skipMs)
    return 'timeout'
  }
}

/** Rejects with a ProxyError if there is no answer in time, else with the error of the system. */
function dial(endpoint: string, client: Socket, timeoutMs: number): Promise<Socket> {
  const address = splitHostPort(endpoint)
  if (address === undefined) return Promise.reject(new ProxyError('relay', `endpoint ${endpoint} is not ip:port`))
  return new Promise((resolve, reject) => {
    const socket: Socket = createConnection({
      ...address,
      ...socketOptions,
      onread: readInto(client, () => socket),
    })
    let immediate: NodeJS.Immediate | undefined
    // If this process itself is late, the answer has already arrived, and the event loop reads it before it runs the immediate.
    const timer = setTimeout(() => {
      immediate = setImmediate(() => {
        socket.destroy()
        reject(new ProxyError('relay', `endpoint ${endpoint} did not answer within ${timeoutMs} ms`))
      })
    }, timeoutMs)
    const cancelTimeout = () => {
      clearTimeout(timer)
      if (immediate !== undefined) clearImmediate(immediate)
    }
    const fail = (error: Error) => {
      cancelTimeout()
      reject(error)
    }
    socket.once('error', fail)
    socket.once('connect', () => {
      cancelTimeout()
      socket.off('error', fail)
      resolve(socket)
    })
  })
}

/** Undefined if the fault is the endpoint's and not this machine's. */
function classifyOwnFault(error: unknown): ShedReason | undefined {
  if (hasErrno(error, 'EMFILE', 'ENFILE')) return 'files'
  return hasErrno(error, 'EADDRNOTAVAIL') ? 'ports' : undefined
}
