// Probes an endpoint from this node: whether it accepts a TCP connection, or answers a request over HTTP, HTTPS or gRPC.

import { type ClientRequest, type IncomingMessage, request as requestHttp, STATUS_CODES } from 'node:http'
import { request as requestHttps } from 'node:https'
import { connect } from 'node:net'
import type { ProbePlan } from '../../engine/probes/probe-groups.ts'
import { hasErrno } from '../../lib/errors.ts'
import { splitHostPort } from '../../lib/ip.ts'
import { checkGrpcHealth } from './grpc-health.ts'

/** `unknown`: this machine itself could not dial. */
export type ProbeResult = { readonly failure: string | undefined } | 'unknown'

export type ProbeWish = Pick<ProbePlan, 'kind' | 'target' | 'timeoutMs'>

export interface ProbeAddress {
  readonly host: string
  readonly port: number
}

/** Answers once, and can be given up. */
export interface RunningProbe {
  readonly done: Promise<ProbeResult>
  abandon(): void
}

export const succeeded: ProbeResult = { failure: undefined }

/** Never rejects. Ends with its socket closed. */
export async function probeEndpoint(endpoint: string, plan: ProbeWish): Promise<ProbeResult> {
  const address = splitHostPort(endpoint)
  if (address === undefined) return 'unknown'
  const running = begin(address, plan)
  return new Promise((resolve) => {
    // If this process itself is late, the answer has already arrived, and the event loop reads it before it runs the immediate.
    const timer = setTimeout(
      () =>
        setImmediate(() => {
          running.abandon()
          resolve({ failure: `no answer within ${plan.timeoutMs} ms` })
        }),
      plan.timeoutMs,
    )
    void running.done.then((result) => {
      clearTimeout(timer)
      running.abandon()
      resolve(result)
    })
  })
}

function begin(address: ProbeAddress, { kind, target }: ProbeWish): RunningProbe {
  if (kind === 'tcp') return probeTcp(address)
  if (kind === 'grpc') return checkGrpcHealth(address, target, describeDialError)
  const options = { ...address, path: target, agent: false, headers: { 'user-agent': 'sluice-probe' } }
  // As the kubelet does, certificates are not verified: they rarely name pod addresses.
  return probeHttp(kind === 'http' ? requestHttp(options) : requestHttps({ ...options, rejectUnauthorized: false }))
}

function probeTcp(address: ProbeAddress): RunningProbe {
  const socket = connect(address)
  return {
    done: new Promise((resolve) => {
      socket.once('connect', () => resolve(succeeded))
      socket.on('error', (error) => resolve(describeDialError(error)))
    }),
    // A reset leaves nothing in TIME_WAIT, on neither side.
    abandon: () => void socket.resetAndDestroy(),
  }
}

/** As with the kubelet, every status from 200 to 399 is a success. */
function probeHttp(request: ClientRequest): RunningProbe {
  request.end()
  return {
    done: new Promise((resolve) => {
      request.once('response', (response: IncomingMessage) => {
        response.on('error', () => {})
        const status = response.statusCode ?? 0
        resolve(status >= 200 && status < 400 ? succeeded : { failure: describeStatus(status) })
      })
      request.on('error', (error) => resolve(describeDialError(error)))
    }),
    abandon: () => void request.destroy(),
  }
}

const describeStatus = (status: number): string => `HTTP ${status} ${STATUS_CODES[status] ?? ''}`.trim()

function describeDialError(error: Error): ProbeResult {
  if (hasErrno(error, 'EMFILE', 'ENFILE', 'EADDRNOTAVAIL', 'ENOBUFS', 'ENETUNREACH', 'EACCES', 'EPERM'))
    return 'unknown'
  if (hasErrno(error, 'ECONNREFUSED')) return { failure: 'connection refused' }
  if (hasErrno(error, 'ECONNRESET', 'EPIPE')) return { failure: 'connection reset' }
  if (hasErrno(error, 'EHOSTUNREACH')) return { failure: 'host unreachable' }
  const { code } = error as NodeJS.ErrnoException
  return { failure: `no valid answer (${code ?? error.name})` }
}
