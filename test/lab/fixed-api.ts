// A minimal API server inside the namespace of the node, for kube-proxy: it serves a few objects that never change.

import { createServer, type Server } from 'node:http'
import type { Manifest } from '../scenarios/format.ts'
import type { Namespace } from './namespace.ts'

const port = 8001

export interface FixedApi {
  readonly url: string
  close(): void
}

export async function serveObjects(
  node: Namespace,
  name: string,
  ip: string,
  objects: readonly Manifest[],
): Promise<FixedApi> {
  const of = (kind: string) => objects.filter((object) => object.kind === kind)
  const nodes = [
    {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name, resourceVersion: '1' },
      spec: {},
      status: { addresses: [{ type: 'InternalIP', address: ip }] },
    },
  ]
  const lists: Readonly<Record<string, readonly [string, string, readonly unknown[]]>> = {
    '/api/v1/services': ['v1', 'ServiceList', of('Service')],
    '/apis/discovery.k8s.io/v1/endpointslices': ['discovery.k8s.io/v1', 'EndpointSliceList', of('EndpointSlice')],
    '/api/v1/nodes': ['v1', 'NodeList', nodes],
    '/apis/networking.k8s.io/v1/servicecidrs': ['networking.k8s.io/v1', 'ServiceCIDRList', []],
  }
  const server: Server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://api')
    const send = (code: number, body: unknown) => {
      response.writeHead(code, { 'content-type': 'application/json' })
      response.end(JSON.stringify(body))
    }
    const known = lists[url.pathname]
    request.resume()
    if (known === undefined) {
      const failure = { kind: 'Status', apiVersion: 'v1', status: 'Failure' }
      return send(404, { ...failure, reason: 'NotFound', code: 404 })
    }
    // Clients fall back to plain lists if the server refuses streamed ones.
    if (url.searchParams.get('sendInitialEvents') === 'true') {
      return send(422, { kind: 'Status', apiVersion: 'v1', status: 'Failure', reason: 'Invalid', code: 422 })
    }
    if (url.searchParams.get('watch') !== null) {
      response.writeHead(200, { 'content-type': 'application/json' })
      return response.flushHeaders()
    }
    const [apiVersion, kind, items] = known
    send(200, { apiVersion, kind, metadata: { resourceVersion: '1' }, items })
  })
  await new Promise<void>((resolve) => server.listen({ fd: node.openSocket('tcp', '127.0.0.1', port) }, resolve))
  return {
    url: `http://127.0.0.1:${port}`,
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}
