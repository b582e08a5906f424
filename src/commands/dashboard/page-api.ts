// The read-only JSON that the page asks for, and its stream of server-sent events.

import type { ServerResponse } from 'node:http'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import type { AdminClient } from '../../http/admin-client.ts'
import { readFlowQuery } from '../../http/admin-flows.ts'
import type { HistoryQuestion } from '../../http/admin-history.ts'
import type {
  FlowMessage,
  PageAbout,
  PageConnections,
  PageMessage,
  ServiceList,
  ServicePage,
} from '../../http/admin-page.ts'
import type { Exchange, Route, Routes } from '../../http/routing.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { FleetAnswer } from '../nodes/fleet-answer.ts'
import { resolvePacketSource } from '../sources/packet-source.ts'
import { FlowFeed } from './flow-feed.ts'
import { safeHeaders } from './page-guard.ts'
import type { ProxyFeed } from './proxy-feed.ts'
import { makeServiceRows } from './service-rows.ts'
import { type Pace, SharedAnswer, SharedAnswers } from './shared-answer.ts'

export interface PageSources {
  readonly about: PageAbout
  /** Undefined if only a fleet is shown. */
  readonly feed: ProxyFeed | undefined
  /** Undefined without a cluster. */
  readonly readFleet: (() => Promise<FleetAnswer>) | undefined
}

export function makePageApi(sources: PageSources): Routes {
  const { about, feed, readFleet } = sources
  const fleet = new SharedAnswer(readFleet ?? missing('there is no cluster: give --kubeconfig'), clusterWide)
  let asked = 0
  return {
    '/api/about': answer(async () => about),
    '/api/fleet': answer(() => fleet.get(String(++asked))),
    ...(feed === undefined ? {} : makeProxyRoutes(feed)),
  }
}

/** Figures change all the time, so they are read as long as a viewer looks. */
const steady: Pace = { leastMs: 3_000, restFactor: 200 }
/** The API server is asked for all nodes, not the proxy. */
const clusterWide: Pace = { leastMs: 3_000, restFactor: 20 }
/** The list is read only after a change. With 10,000 services that takes the proxy 0.2 s. */
const changing: Pace = { leastMs: 1_000, restFactor: 20 }

function makeProxyRoutes(feed: ProxyFeed): Routes {
  const services = new SharedAnswer(() => readServices(feed), changing)
  const connections = new SharedAnswer(() => readConnections(feed), steady)
  const traffic = new SharedAnswers(async (service) => (await feed.client()).traffic(service), steady)
  const flows = new FlowFeed(() => feed.client())
  let asked = 0
  return {
    '/api/events': (exchange) => streamMessages(feed, exchange),
    '/api/samples': answer(async () => feed.samples),
    '/api/services': answer(() => services.get(feed.revision)),
    '/api/connections': answer(() => connections.get(String(++asked))),
    '/api/traffic': answer(({ query }) => traffic.of(query.get('service') ?? '').get(String(++asked))),
    '/api/flows/events': (exchange) => streamFlows(flows, exchange),
    '/api/history': ask(feed, (client, query) => client.history(readHistoryQuestion(query))),
    '/api/service': ask(feed, (client, query) => readService(client, query.get('name') ?? '', query.has('kernel'))),
    '/api/explain': ask(feed, explainFor),
  }
}

/** The page asks for one screen after the other. */
const historyLimit = 50

const readHistoryQuestion = (query: URLSearchParams): HistoryQuestion => ({
  service: query.get('service') ?? '',
  since: 0,
  beforeSync: Number(query.get('before') ?? 0) || 0,
  afterSync: 0,
  limit: historyLimit,
})

const missing = (message: string) => () => Promise.reject(new ProxyError('question', message))

async function readServices(feed: ProxyFeed): Promise<ServiceList> {
  const { revision } = feed
  const client = await feed.client()
  return { revision, rows: makeServiceRows(await client.services('', false)) }
}

async function readConnections(feed: ProxyFeed): Promise<PageConnections> {
  const client = await feed.client()
  return { at: Date.now(), counts: await client.connections() }
}

async function readService(client: AdminClient, name: string, kernel: boolean): Promise<ServicePage> {
  if (name === '') throw new ProxyError('question', 'the name of a service is missing')
  return { name, comparison: await client.comparison(name, kernel) }
}

/** The client is an address, the node or a pod, as in `sluice explain --from`. */
async function explainFor(client: AdminClient, query: URLSearchParams) {
  const flags = new Map([['from', (query.get('from') ?? '').trim()]])
  const from = await resolvePacketSource(flags, client)
  return client.explain({ target: query.get('target') ?? '', from })
}

const ask = (feed: ProxyFeed, compute: (client: AdminClient, query: URLSearchParams) => Promise<unknown>): Route =>
  answer(async ({ query }) => compute(await feed.client(), query))

const compress = promisify(gzip)
/** Smaller answers fit into few packets anyway. */
const compressedBytes = 4_096

function answer(compute: (exchange: Exchange) => Promise<unknown>): Route {
  return async (exchange) => {
    try {
      await sendJson(exchange, 200, await compute(exchange))
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      const isQuestion = ['question', 'usage', 'bad-request', 'not-found'].includes(error.code)
      await sendJson(exchange, isQuestion ? 400 : 502, { error: describeError(error) })
    }
  }
}

async function sendJson({ request, response }: Exchange, status: number, value: unknown): Promise<void> {
  const text = Buffer.from(JSON.stringify(value))
  const isCompressed = text.length > compressedBytes && /\bgzip\b/.test(request.headers['accept-encoding'] ?? '')
  const body = isCompressed ? await compress(text, { level: 1 }) : text
  response.writeHead(status, {
    ...safeHeaders,
    'Content-Type': 'application/json',
    'Cache-Control': 'no-store',
    'Content-Length': body.length,
    ...(isCompressed ? { 'Content-Encoding': 'gzip' } : {}),
  })
  response.end(request.method === 'HEAD' ? undefined : body)
}

/** A comment goes out this often, so that both sides notice a connection that is gone. */
const heartbeatMs = 15_000

function streamMessages(feed: ProxyFeed, exchange: Exchange): void {
  streamJson<PageMessage>(exchange, (send) => feed.subscribe(send))
}

/** Flows are followed as long as a viewer looks at them; the proxy follows them only then. */
function streamFlows(flows: FlowFeed, exchange: Exchange): void {
  streamJson<FlowMessage>(exchange, (send) =>
    flows.subscribe(readFlowQuery(exchange.query), { send, end: () => exchange.response.end() }),
  )
}

function streamJson<T>({ request, response }: Exchange, start: (send: (message: T) => void) => () => void): void {
  response.writeHead(200, { ...safeHeaders, 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' })
  if (request.method === 'HEAD') return void response.end()
  response.write('retry: 2000\n\n')
  const stop = start((message) => sendMessage(response, message))
  const heartbeat = setInterval(() => response.write(': still here\n\n'), heartbeatMs)
  response.on('close', () => {
    clearInterval(heartbeat)
    stop()
  })
}

/** A viewer that does not keep up is disconnected, and its browser connects again. */
function sendMessage(response: ServerResponse, message: unknown): void {
  if (response.writableLength > 4 << 20) response.destroy()
  else response.write(`data: ${JSON.stringify(message)}\n\n`)
}
