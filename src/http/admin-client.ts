// Finds the admin socket of a running proxy and asks questions through it.

import { type Agent, type RequestOptions, request } from 'node:http'
import { connect } from 'node:net'
import { type Errno, type ErrorCode, hasErrno, ProxyError, readErrno } from '../lib/errors.ts'
import { platform } from '../sys/platform/platform.ts'
import type {
  AdminEvent,
  ChangeCount,
  Comparison,
  Connections,
  Explanation,
  Inputs,
  ObjectAnswer,
  ObjectQuestion,
  Question,
  ReportSummary,
  ServiceSummary,
  Summary,
} from './admin.ts'
import type { FlowEvent, FlowList, FlowQuery } from './admin-flows.ts'
import {
  type DifferenceAnswer,
  type HistoryAnswer,
  type HistoryPoint,
  type HistoryQuestion,
  writePoint,
  writeQuestion,
} from './admin-history.ts'
import type { SampleAnswer } from './admin-samples.ts'
import type { TraceQuestion, TraceReport } from './admin-trace.ts'
import type { Traffic } from './admin-traffic.ts'

const { sockets } = platform

/** Returns the path of the admin socket of a node's proxy; '' if SLUICE_ADMIN_SOCKET is `off`. */
export function socketPath(node: string, env: NodeJS.ProcessEnv): string {
  const configured = env.SLUICE_ADMIN_SOCKET ?? ''
  if (configured === 'off') return ''
  return configured === '' ? sockets.pathOf(node) : configured
}

/** Returns the given path, else the one of the environment, else the only socket in the folder on which a process listens. */
export async function findSocket(given: string, env: NodeJS.ProcessEnv, folder = sockets.folder): Promise<string> {
  if (given !== '') return given
  const configured = env.SLUICE_ADMIN_SOCKET ?? ''
  if (configured !== '' && configured !== 'off') return configured
  // A proxy that was killed leaves its socket behind.
  const live = await Promise.all(sockets.list(folder).map(async (path) => ((await isListening(path)) ? [path] : [])))
  const found = live.flat()
  if (found.length === 1) return found[0] as string
  const other = 'or name a source: --kubeconfig FILE, or --manifests DIR'
  if (found.length === 0) {
    throw new ProxyError('no-proxy', `no proxy runs here (no process listens in ${folder}): start one, ${other}`)
  }
  throw new ProxyError('several', `several proxies run here (${found.join(', ')}): choose with --socket, ${other}`)
}

/** EACCES also proves that a proxy is there. */
function isListening(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    socket.on('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.on('error', (error) => resolve(hasErrno(error, 'EACCES')))
  })
}

/** A longer answer is not read: the proxy of another node may be in other hands. */
const maxAnswer = 256 << 20

/** Characters of a stream that are kept in case it is an error. */
const maxError = 4_096

export class AdminClient {
  readonly path: string
  readonly #agent: Agent | undefined

  /** With an agent, its connections lead to the socket, and the path only names it in messages. */
  constructor(path: string, agent?: Agent) {
    this.path = path
    this.#agent = agent
  }

  /** Closes the connections of the agent. */
  close(): void {
    this.#agent?.destroy()
  }

  summary(): Promise<Summary> {
    return this.#ask('/v1/summary')
  }

  services(service: string, kernel: boolean): Promise<readonly ServiceSummary[]> {
    return this.#ask('/v1/services', { service, kernel: kernel ? '1' : '0' })
  }

  comparison(service: string, kernel: boolean): Promise<Comparison> {
    return this.#ask('/v1/comparison', { service, kernel: kernel ? '1' : '0' })
  }

  select(selector: string): Promise<readonly string[]> {
    return this.#ask('/v1/select', { selector })
  }

  explain({ target, from }: Question): Promise<readonly Explanation[]> {
    return this.#ask('/v1/explain', { target, from })
  }

  inputs(): Promise<Inputs> {
    return this.#ask('/v1/inputs')
  }

  object(question: ObjectQuestion): Promise<ObjectAnswer> {
    return this.#ask('/v1/object', { ...question })
  }

  connections(): Promise<readonly Connections[]> {
    return this.#ask('/v1/connections')
  }

  changes(): Promise<readonly ChangeCount[]> {
    return this.#ask('/v1/changes')
  }

  samples(after: number): Promise<SampleAnswer> {
    return this.#ask('/v1/samples', { after: String(after) })
  }

  reports(service: string): Promise<readonly ReportSummary[]> {
    return this.#ask('/v1/reports', { service })
  }

  traffic(service: string): Promise<Traffic> {
    return this.#ask('/v1/traffic', { service })
  }

  history(question: HistoryQuestion): Promise<HistoryAnswer> {
    return this.#ask('/v1/history', writeQuestion(question))
  }

  historyDifference(from: HistoryPoint, to: HistoryPoint, service: string): Promise<DifferenceAnswer> {
    return this.#ask('/v1/history/diff', { from: writePoint(from), to: writePoint(to), service })
  }

  /** Calls `onEvent` for each event until the signal aborts or the proxy ends. */
  events(onEvent: (event: AdminEvent) => void, signal: AbortSignal): Promise<void> {
    return this.#follow('/v1/events', onEvent, signal)
  }

  flows(query: FlowQuery): Promise<FlowList> {
    return this.#ask('/v1/flows', flowParameters(query))
  }

  /** Calls `onEvent` for each flow that begins or ends until the signal aborts or the proxy ends. */
  followFlows(query: FlowQuery, onEvent: (event: FlowEvent) => void, signal: AbortSignal): Promise<void> {
    return this.#follow(`/v1/flows/events?${new URLSearchParams(flowParameters(query))}`, onEvent, signal)
  }

  /** Calls `onReport` until the trace has ended, or the signal aborts. */
  trace(question: TraceQuestion, onReport: (report: TraceReport) => void, signal: AbortSignal): Promise<void> {
    const { target, from, seconds, packets } = question
    const query = new URLSearchParams({ target, from, seconds: String(seconds), packets: String(packets) })
    return this.#follow(`/v1/trace?${query}`, onReport, signal)
  }

  async #follow<T>(path: string, onEvent: (event: T) => void, signal: AbortSignal): Promise<void> {
    let rest = ''
    let head = ''
    const reviver = this.#agent === undefined ? undefined : withoutControls
    const status = await this.#send(path, signal, (chunk) => {
      const lines = (rest + chunk).split('\n')
      rest = lines.pop() as string
      if (rest.length > maxAnswer) throw new ProxyError('admin', `the proxy at ${this.path} sends too long a line`)
      for (const line of lines) if (line.startsWith('data: ')) onEvent(JSON.parse(line.slice(6), reviver) as T)
      if (head.length < maxError) head += chunk
    })
    if (status >= 400) throw toError(head, status, this.path)
  }

  async #ask<T>(path: string, query: Readonly<Record<string, string>> = {}): Promise<T> {
    let body = ''
    const status = await this.#send(`${path}?${new URLSearchParams(query)}`, AbortSignal.timeout(60_000), (chunk) => {
      body += chunk
      if (body.length > maxAnswer) throw new ProxyError('admin', `the proxy at ${this.path} sends too long an answer`)
    })
    if (status === 200) return JSON.parse(body, this.#agent === undefined ? undefined : withoutControls) as T
    throw toError(body, status, this.path)
  }

  #send(path: string, signal: AbortSignal, onText: (chunk: string) => void): Promise<number> {
    const options: RequestOptions =
      this.#agent === undefined
        ? { socketPath: this.path, path, signal, agent: false }
        : { host: 'localhost', path, signal, agent: this.#agent }
    return new Promise((resolve, reject) => {
      const fail = (cause: Error) =>
        signal.aborted && signal.reason?.name !== 'TimeoutError' ? resolve(0) : reject(unreachable(this.path, cause))
      const sent = request(options, (response) => {
        response.setEncoding('utf8')
        response.on('data', (chunk: string) => {
          try {
            onText(chunk)
          } catch (error) {
            reject(error)
            response.destroy()
          }
        })
        response.on('end', () => resolve(response.statusCode ?? 0))
        response.on('error', fail)
      })
      sent.on('error', (error) => {
        // The proxy closes idle connections, also in the moment in which one is used again.
        if (sent.reusedSocket && !signal.aborted) this.#send(path, signal, onText).then(resolve, reject)
        else fail(error)
      })
      sent.end()
    })
  }
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed.
const controls = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g

/** Another node must not send commands to the terminal of the person who asks. */
const withoutControls = (_: string, value: unknown): unknown =>
  typeof value === 'string' ? value.replace(controls, ' ') : value

const flowParameters = ({ service, from, verdicts, limit }: FlowQuery): Readonly<Record<string, string>> => ({
  service,
  from,
  verdict: verdicts.join(','),
  limit: String(limit),
})

function toError(body: string, status: number, path: string): ProxyError {
  try {
    // The proxy has this version or one close to it, so its error codes are known here; an unknown code is only printed.
    const { error, code } = JSON.parse(body) as { error: string; code: ErrorCode }
    return new ProxyError(code, error)
  } catch {
    return new ProxyError('admin', `the proxy behind ${path} answered ${status}: ${body.trim().slice(0, 200)}`)
  }
}

const connectProblems: Readonly<Partial<Record<Errno, string>>> = {
  ENOENT: 'the socket does not exist: does the proxy run?',
  ECONNREFUSED: 'no process listens: the proxy has ended',
  EACCES: 'not permitted: only its owner, usually root, may ask',
}

function unreachable(path: string, cause: Error): ProxyError {
  if (cause instanceof ProxyError) return new ProxyError(cause.code, `cannot ask ${path}: ${cause.message}`, { cause })
  const errno = readErrno(cause)
  const problem = (errno && connectProblems[errno]) ?? cause.message
  return new ProxyError('admin', `cannot ask the proxy at ${path}: ${problem}`, { cause })
}
