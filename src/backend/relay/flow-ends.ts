// Decides how a relayed flow ended, from the state of its sockets. Pure.

import { hasErrno, ProxyError } from '../../lib/errors.ts'
import type { RelayVerdict } from '../relayed-flows.ts'
import type { ShedReason } from './relay.ts'

/** Nothing came back from the other side, or not any more. */
const isSilence = (error: unknown): boolean => hasErrno(error, 'ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH')

/** The error is our own if the relay gave up waiting. */
export const judgeDial = (error: unknown): RelayVerdict =>
  error instanceof ProxyError || isSilence(error) ? 'timed-out' : 'refused'

/** What is left of a TCP socket when the connection has ended. */
export interface EndedSocket {
  /** The other side has said that it sends nothing more. */
  readonly readableEnded: boolean
  readonly errored: Error | null
}

/** `endpoint` is undefined if the client went away before an endpoint had answered. */
export function judgeTcpEnd(client: EndedSocket, endpoint: EndedSocket | undefined): RelayVerdict {
  const error = client.errored ?? endpoint?.errored ?? null
  // Keep-alive found that one side has vanished, or packets were not acknowledged.
  if (isSilence(error)) return 'timed-out'
  return error === null && client.readableEnded && endpoint?.readableEnded === true ? 'closed' : 'reset'
}

/** `idle`: the client was silent. `refused`: the endpoint refuses datagrams. `gone`: the endpoint or the service is gone. */
export type UdpEnd = 'idle' | 'refused' | 'gone'

export function judgeUdpEnd(end: UdpEnd, answers: number): RelayVerdict {
  if (end === 'gone') return 'closed'
  if (end === 'refused') return answers === 0 ? 'refused' : 'reset'
  return answers === 0 ? 'timed-out' : 'expired'
}

/** Why a relay turned a client away, as `sluice flows` names it. */
export const turnedAway: Readonly<Record<ShedReason | 'source', string>> = {
  files: 'the relay (too many open files)',
  dial: 'the relay (no endpoint)',
  ports: 'the relay (no local port left to reach an endpoint from)',
  flows: 'the relay (too many UDP clients at once)',
  source: 'the relay (this client may not use the address)',
}
