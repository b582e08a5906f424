// The admin socket: what a running proxy knows, as JSON over a unix socket that only its owner may open; and events as they happen.

import { chmodSync, mkdirSync, unlinkSync } from 'node:fs'
import { createServer, type Server, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { dirname } from 'node:path'
import type { Mode, Settings } from '../backend/backend.ts'
import type { Conflict, Counters } from '../engine/journal.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Reason } from '../model/trace.ts'
import type { Disposition, NodeView, Protocol, ServiceRecord, SliceRecord } from '../model/types.ts'
import { type Exchange, reply, router, text } from './server.ts'

export interface ProxyIdentity {
  readonly node: string
  readonly mode: Mode
  readonly pid: number
  readonly version: string
  /** Unix ms. */
  readonly startedAt: number
}

export interface Summary extends ProxyIdentity {
  readonly services: number
  readonly families: readonly FamilySummary[]
  readonly conflicts: readonly Conflict[]
  readonly quarantined: readonly QuarantineSummary[]
  /** Newest first. */
  readonly reports: readonly ReportSummary[]
  readonly counters: Readonly<Counters>
  /** Connections the kernel tracks, and how many it can; undefined where it does not track any. */
  readonly connections: { readonly tracked: number; readonly limit: number } | undefined
}

export interface FamilySummary {
  readonly family: Family
  /** Equal on two nodes if both are meant to do the same for every service. */
  readonly stateHash: string
  /** Entries that the services need. */
  readonly entries: number
  readonly lastSync: ReportSummary | undefined
}

export interface ReportSummary {
  readonly family: Family
  /** Unix ms. */
  readonly startedAt: number
  readonly durationMs: number
  readonly full: boolean
  readonly ok: boolean
  readonly error: string
  readonly put: number
  readonly dropped: number
  readonly held: number
  readonly services: readonly string[]
  readonly refused: readonly { readonly service: string; readonly id: string; readonly error: string }[]
}

export interface QuarantineSummary {
  readonly service: string
  readonly family: Family
  readonly error: string
  readonly attempts: number
  /** Unix ms. */
  readonly since: number
  readonly retryAt: number
  readonly entries: readonly string[]
}

/** Where an entry is, seen with the kernel's eyes. `present`: it is there, its content cannot be compared in this mode. */
export type Presence = 'held' | 'present' | 'missing' | 'differs' | 'not checked'

export interface ServiceSummary {
  readonly service: string
  readonly family: Family
  readonly ports: readonly PortSummary[]
  /** A change waits for a sync. */
  readonly pending: boolean
  readonly entries: number
  /** Of these entries, in the kernel now; undefined if it was not asked. */
  readonly inKernel: Readonly<Record<Presence, number>> | undefined
  /** Entries that are not as they should be, in words. */
  readonly wrong: readonly string[]
  /** Addresses that an older service holds: `10.0.0.1:80/tcp (ns/older)`. */
  readonly lost: readonly string[]
  readonly quarantine: string
}

export interface PortSummary {
  readonly name: string
  readonly protocol: Protocol
  /** `cluster-ip 10.96.0.1:443`. */
  readonly frontends: readonly string[]
  readonly internal: Disposition
  readonly external: Disposition
  readonly endpoints: readonly string[]
  readonly localEndpoints: readonly string[]
  readonly affinitySeconds: number
}

export interface Question {
  /** `10.96.0.10:53/udp`, or `namespace/name[:port]`. */
  readonly target: string
  /** An address, `node`, or '' for the node itself. */
  readonly from: string
}

export interface Explanation {
  readonly node: string
  readonly mode: Mode
  readonly packet: {
    readonly from: string
    readonly to: string
    readonly port: number
    readonly protocol: Protocol
    readonly origin: 'pod' | 'node' | 'outside'
  }
  readonly verdict: 'forward' | 'reject' | 'drop' | 'pass'
  readonly reason: Reason | undefined
  /** `ns/name:port`, '' if the packet met no service. */
  readonly service: string
  readonly frontend: string
  readonly steps: readonly string[]
  readonly endpoints: readonly EndpointCandidate[]
  readonly affinitySeconds: number
  /** Does the endpoint see this node instead of the client? `hairpin`: only a pod that reaches itself. */
  readonly snat: 'yes' | 'no' | 'hairpin' | 'none'
  readonly entries: readonly EntrySummary[]
  /** What else is to be known: conflicts, quarantine, changes that wait. */
  readonly remarks: readonly string[]
}

export interface EndpointCandidate {
  readonly address: string
  readonly node: string
  /** 0 to 1; 0: not used. */
  readonly probability: number
  readonly snat: boolean
  /** Why it is used or not. */
  readonly why: string
}

export interface EntrySummary {
  readonly id: string
  readonly kind: string
  readonly digest: string
  readonly kernel: Presence
}

/** Everything a plan is made of, so that others can ask "what if" without the proxy's help. */
export interface Inputs {
  readonly identity: ProxyIdentity
  readonly settings: Settings
  readonly views: readonly NodeView[]
  readonly nodeAddresses: readonly string[]
  readonly services: readonly ServiceRecord[]
  readonly slices: readonly SliceRecord[]
}

/** How many connections go from a service port to an endpoint. */
export interface Connections {
  readonly service: string
  readonly endpoint: string
  readonly count: number
}

/** One event of the stream. */
export type AdminEvent =
  | { readonly kind: 'sync'; readonly report: ReportSummary }
  | { readonly kind: 'conflict' | 'resolved'; readonly conflict: Conflict }
  | { readonly kind: 'drift'; readonly family: Family; readonly culprit: string }
  | { readonly kind: 'problem'; readonly object: string; readonly message: string }

/** What the socket asks of the process behind it. */
export interface AdminAnswers {
  summary(): Summary
  /** All services or one; with `kernel`, what the kernel holds is looked up. */
  services(one: string, kernel: boolean): Promise<readonly ServiceSummary[]>
  explain(question: Question): Promise<readonly Explanation[]>
  inputs(): Inputs
  connections(): Promise<readonly Connections[]>
  subscribe(listener: (event: AdminEvent) => void): () => void
}

export interface AdminSocket {
  readonly path: string
  close(): Promise<void>
}

const json = (response: ServerResponse, status: number, value: unknown): void =>
  reply(response, { status, type: 'application/json', body: `${JSON.stringify(value)}\n` })

export function adminRoutes(informant: AdminAnswers) {
  const answer = (make: (exchange: Exchange) => unknown) => async (exchange: Exchange) => {
    if (exchange.method !== 'GET') return text(exchange.response, 405, 'only GET is understood here\n')
    try {
      json(exchange.response, 200, await make(exchange))
    } catch (error) {
      // What a question got wrong is the asker's to hear; the rest is the log's.
      if (!(error instanceof ProxyError)) throw error
      json(exchange.response, 400, { error: describeError(error), code: error.code })
    }
  }
  return {
    '/v1/summary': answer(() => informant.summary()),
    '/v1/services': answer(({ query }) => informant.services(query.get('service') ?? '', query.get('kernel') === '1')),
    '/v1/explain': answer(({ query }) =>
      informant.explain({ target: query.get('target') ?? '', from: query.get('from') ?? '' }),
    ),
    '/v1/inputs': answer(() => informant.inputs()),
    '/v1/connections': answer(() => informant.connections()),
    '/v1/events': (exchange: Exchange) => stream(informant, exchange),
  }
}

/** Server-sent events: one JSON object a line, until the reader leaves. */
function stream(informant: AdminAnswers, { request, response }: Exchange): void {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' })
  response.write(': sluice\n\n')
  const stop = informant.subscribe((event) => {
    // A reader that does not keep up loses its connection; what it would cost is the proxy's memory.
    if (response.writableLength > 1 << 20) response.destroy()
    else response.write(`data: ${JSON.stringify(event)}\n\n`)
  })
  request.on('close', stop)
  response.on('close', stop)
}

/** Rejects if it cannot be made; a socket that nobody listens on any more is replaced. */
export async function listenAdmin(path: string, informant: AdminAnswers, log: Logger): Promise<AdminSocket> {
  mkdirSync(dirname(path), { recursive: true, mode: 0o755 })
  if (await answered(path)) throw new ProxyError('admin', `another proxy listens on ${path}`)
  removeFile(path)
  const handle = router(adminRoutes(informant), log)
  const server = createServer({ requestTimeout: 10_000 }, (request, response) => {
    response.on('error', () => {})
    Promise.resolve(handle(request, response)).catch((error: unknown) => {
      log.error('admin request failed', { error: describeError(error) })
      response.destroy()
    })
  })
  server.maxConnections = 64
  await bind(server, path)
  chmodSync(path, 0o600)
  server.on('error', (error) => log.error('admin socket', { error: describeError(error) }))
  // The proxy lives and ends by other things than this.
  server.unref()
  return {
    path,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
        removeFile(path)
      }),
  }
}

function bind(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    // Between bind and chmod nobody else may open it.
    const mask = process.umask(0o177)
    server.once('error', reject)
    server.listen(path, () => {
      server.off('error', reject)
      resolve()
    })
    process.umask(mask)
  })
}

function answered(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    const done = (yes: boolean) => {
      socket.destroy()
      resolve(yes)
    }
    socket.on('connect', () => done(true))
    socket.on('error', () => done(false))
  })
}

function removeFile(path: string): void {
  try {
    unlinkSync(path)
  } catch {
    // Nothing there: as wanted. Anything else shows when the socket is bound.
  }
}
