// As much of an API server as a kube-proxy needs to start: objects from a file, listed and watched, never changed. Arguments: file, port.

import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'

interface Item {
  readonly apiVersion: string
  readonly kind: string
}

const [file = '', port = '0'] = process.argv.slice(2)
const items = JSON.parse(readFileSync(file, 'utf8')) as readonly Item[]
const kinds: Readonly<Record<string, string>> = {
  nodes: 'Node',
  services: 'Service',
  endpointslices: 'EndpointSlice',
}

createServer((request, response) => {
  const url = new URL(request.url ?? '/', 'http://localhost')
  const resource = url.pathname.split('/').at(-1) as string
  const kind = kinds[resource]
  response.setHeader('Content-Type', 'application/json')
  if (request.method !== 'GET' || kind === undefined) {
    response.statusCode = request.method === 'GET' ? 404 : 201
    response.end('{"kind":"Status","apiVersion":"v1","status":"Failure","code":404}')
    return
  }
  const own = items.filter((item) => item.kind === kind)
  const apiVersion = kind === 'EndpointSlice' ? 'discovery.k8s.io/v1' : 'v1'
  if (url.searchParams.get('watch') === null) {
    response.end(JSON.stringify({ apiVersion, kind: `${kind}List`, metadata: { resourceVersion: '1' }, items: own }))
    return
  }
  response.write('')
  if (url.searchParams.get('sendInitialEvents') !== 'true') return
  for (const object of own) response.write(`${JSON.stringify({ type: 'ADDED', object })}\n`)
  const metadata = { resourceVersion: '1', annotations: { 'k8s.io/initial-events-end': 'true' } }
  response.write(`${JSON.stringify({ type: 'BOOKMARK', object: { apiVersion, kind, metadata } })}\n`)
}).listen(Number(port), '127.0.0.1', () => process.stdout.write('listening\n'))
