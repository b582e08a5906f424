// A minimal API server for proxies, in the test process: its objects are listed and watched, and change when the test says so.

import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { Namespace } from './namespace.ts'

export interface Item {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: { readonly name: string; readonly namespace?: string }
}

const kinds: Readonly<Record<string, string>> = { nodes: 'Node', services: 'Service', endpointslices: 'EndpointSlice' }
const versionOf = (kind: string): string => (kind === 'EndpointSlice' ? 'discovery.k8s.io/v1' : 'v1')
const keyOf = ({ kind, metadata: { namespace, name } }: Item): string => `${kind} ${namespace ?? ''}/${name}`

export class WatchedApi {
  readonly url: string
  readonly #server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://localhost')
    const kind = kinds[url.pathname.split('/').at(-1) as string]
    response.setHeader('Content-Type', 'application/json')
    if (request.method === 'GET' && kind !== undefined) return this.#answer(kind, url.searchParams, response)
    response.statusCode = request.method === 'GET' ? 404 : 201
    response.end('{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}')
  })
  readonly #items = new Map<string, Item>()
  readonly #watchers = new Map<ServerResponse, string>()
  #version = 1

  private constructor(port: number) {
    this.url = `http://127.0.0.1:${port}`
  }

  /** Listens on loopback of the node. */
  static async listen(node: Namespace, port: number): Promise<WatchedApi> {
    const api = new WatchedApi(port)
    api.#server.listen({ fd: node.openSocket('tcp', '127.0.0.1', port) })
    await once(api.#server, 'listening')
    return api
  }

  put(...items: readonly Item[]): void {
    for (const item of items) {
      const type = this.#items.has(keyOf(item)) ? 'MODIFIED' : 'ADDED'
      const object = { ...item, metadata: { ...item.metadata, resourceVersion: String(++this.#version) } }
      this.#items.set(keyOf(item), object)
      for (const [response, kind] of this.#watchers) {
        if (kind === item.kind) response.write(`${JSON.stringify({ type, object })}\n`)
      }
    }
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }

  #answer(kind: string, query: URLSearchParams, response: ServerResponse): void {
    const own = [...this.#items.values()].filter((item) => item.kind === kind)
    const apiVersion = versionOf(kind)
    const metadata = { resourceVersion: String(this.#version) }
    if (query.get('watch') === null) {
      response.end(JSON.stringify({ apiVersion, kind: `${kind}List`, metadata, items: own }))
      return
    }
    this.#watchers.set(response, kind)
    response.on('close', () => this.#watchers.delete(response))
    response.write('')
    if (query.get('sendInitialEvents') !== 'true') return
    for (const object of own) response.write(`${JSON.stringify({ type: 'ADDED', object })}\n`)
    const end = { ...metadata, annotations: { 'k8s.io/initial-events-end': 'true' } }
    response.write(`${JSON.stringify({ type: 'BOOKMARK', object: { apiVersion, kind, metadata: end } })}\n`)
  }
}
