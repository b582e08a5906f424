// A minimal API server for proxies, in the test process: its objects are listed and watched, and change when the test says so.

import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import { hostPort } from '../../src/lib/ip.ts'
import type { Namespace } from './namespace.ts'

export interface Item {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: { readonly name: string; readonly namespace?: string }
}

const kinds: Readonly<Record<string, string>> = {
  nodes: 'Node',
  services: 'Service',
  endpointslices: 'EndpointSlice',
  servicecidrs: 'ServiceCIDR',
}
const versions: Readonly<Record<string, string>> = {
  EndpointSlice: 'discovery.k8s.io/v1',
  ServiceCIDR: 'networking.k8s.io/v1',
}
const versionOf = (kind: string): string => versions[kind] ?? 'v1'
const keyOf = ({ kind, metadata: { namespace, name } }: Item): string => `${kind} ${namespace ?? ''}/${name}`

export class WatchedApi {
  readonly url: string
  /** The text of everything that was posted: Events. */
  posted = ''
  /** The header Authorization of the last request; '' if it had none. */
  authorization = ''
  /** Every list and watch that was asked for: its path and query. */
  readonly asked: URL[] = []
  /** Answers 403 to lists and watches for which it returns true. */
  refuses: (url: URL) => boolean = () => false
  readonly #server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://localhost')
    this.authorization = request.headers.authorization ?? ''
    const kind = kinds[url.pathname.split('/').at(-1) as string]
    response.setHeader('Content-Type', 'application/json')
    if (request.method === 'GET' && kind !== undefined) {
      this.asked.push(url)
      return this.refuses(url) ? refuse(response) : this.#answer(kind, url.searchParams, response)
    }
    request.on('data', (chunk) => {
      this.posted += chunk
    })
    response.statusCode = request.method === 'GET' ? 404 : 201
    const message = `${this.url} does not have it`
    const status = { kind: 'Status', apiVersion: 'v1', status: 'Failure', reason: 'NotFound', message, code: 404 }
    response.end(JSON.stringify(status))
  })
  readonly #items = new Map<string, Item>()
  readonly #watchers = new Map<ServerResponse, (item: Item) => boolean>()
  #version = 1
  #isDown = false

  private constructor(ip: string, port: number) {
    this.url = `http://${hostPort(ip, port)}`
  }

  static async listen(host: Namespace, port: number, ip = '127.0.0.1'): Promise<WatchedApi> {
    const api = new WatchedApi(ip, port)
    api.#server.on('connection', (socket) => api.#isDown && socket.destroy())
    api.#server.listen({ fd: host.openSocket('tcp', ip, port) })
    await once(api.#server, 'listening')
    return api
  }

  put(...items: readonly Item[]): void {
    for (const item of items) {
      const type = this.#items.has(keyOf(item)) ? 'MODIFIED' : 'ADDED'
      const object = { ...item, metadata: { ...item.metadata, resourceVersion: String(++this.#version) } }
      this.#items.set(keyOf(item), object)
      for (const [response, isWatched] of this.#watchers) {
        if (isWatched(item)) response.write(`${JSON.stringify({ type, object })}\n`)
      }
    }
  }

  drop(...items: readonly Item[]): void {
    for (const item of items) {
      const object = this.#items.get(keyOf(item))
      this.#items.delete(keyOf(item))
      this.#version++
      for (const [response, isWatched] of this.#watchers) {
        if (isWatched(item) && object !== undefined) {
          response.write(`${JSON.stringify({ type: 'DELETED', object })}\n`)
        }
      }
    }
  }

  items(): readonly Item[] {
    return [...this.#items.values()]
  }

  /** Cuts all connections. Clients may connect again. */
  cut(): void {
    this.#server.closeAllConnections()
  }

  /** Cuts all connections. Until the work is done, every new one is cut, too. */
  async downDuring(work: () => Promise<unknown>): Promise<void> {
    this.#isDown = true
    this.cut()
    try {
      await work()
    } finally {
      this.#isDown = false
    }
  }

  /** Sends a line to all watches. */
  send(line: string): void {
    for (const response of this.#watchers.keys()) response.write(`${line}\n`)
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }

  #answer(kind: string, query: URLSearchParams, response: ServerResponse): void {
    const name = /^metadata\.name=(.*)$/.exec(query.get('fieldSelector') ?? '')?.[1]
    const isSelected = (item: Item) => item.kind === kind && (name === undefined || item.metadata.name === name)
    const own = [...this.#items.values()].filter(isSelected)
    const apiVersion = versionOf(kind)
    const metadata = { resourceVersion: String(this.#version) }
    if (query.get('watch') === null) {
      response.end(JSON.stringify({ apiVersion, kind: `${kind}List`, metadata, items: own }))
      return
    }
    const since = query.get('resourceVersion')
    if (query.get('sendInitialEvents') !== 'true' && since !== String(this.#version)) {
      // There is no history: a client that missed changes must list again.
      const status = { apiVersion: 'v1', kind: 'Status', status: 'Failure', reason: 'Expired', code: 410 }
      response.end(`${JSON.stringify({ type: 'ERROR', object: status })}\n`)
      return
    }
    this.#watchers.set(response, isSelected)
    response.on('close', () => this.#watchers.delete(response))
    response.write('')
    if (query.get('sendInitialEvents') !== 'true') return
    for (const object of own) response.write(`${JSON.stringify({ type: 'ADDED', object })}\n`)
    const end = { ...metadata, annotations: { 'k8s.io/initial-events-end': 'true' } }
    response.write(`${JSON.stringify({ type: 'BOOKMARK', object: { apiVersion, kind, metadata: end } })}\n`)
  }
}

function refuse(response: ServerResponse): void {
  const status = { kind: 'Status', apiVersion: 'v1', status: 'Failure', reason: 'Forbidden', code: 403 }
  response.writeHead(403).end(JSON.stringify({ ...status, message: 'the test refuses it' }))
}
