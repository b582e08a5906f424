// A scripted API server in a process of its own: one snapshot of services and slices as WatchList, then endpoint changes on demand.

import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { bookmark, nth, service, slice } from './objects.ts'

const [services, endpoints] = process.argv.slice(2).map(Number) as [number, number]
let slices: ServerResponse | undefined
let sent = 0

const server = createServer((request, response) => {
  const url = new URL(request.url as string, 'http://localhost')
  response.setHeader('content-type', 'application/json')
  if (url.pathname === '/changes') {
    change(Number(url.searchParams.get('count')), Number(url.searchParams.get('everyMs')))
    response.end('{}')
  } else if (url.pathname.endsWith('/services')) {
    void stream(response, 'Service', (i) => service(i))
  } else if (url.pathname.endsWith('/endpointslices')) {
    slices = response
    void stream(response, 'EndpointSlice', (i) => slice(i, endpoints, 0))
  } else response.writeHead(404).end()
})
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
process.on('disconnect', () => process.exit())

/** As fast as it is read. */
async function stream(response: ServerResponse, kind: string, object: (i: number) => object): Promise<void> {
  for (let i = 0; i < services; i++) {
    if (!response.write(`${JSON.stringify({ type: 'ADDED', object: object(i) })}\n`)) {
      await new Promise<void>((resolve) => response.once('drain', resolve))
    }
  }
  response.write(bookmark(kind))
}

/** One endpoint of one slice at a time, spread over all services. */
function change(count: number, everyMs: number): void {
  const until = sent + count
  const timer = setInterval(() => {
    const i = nth(sent, services)
    slices?.write(`${JSON.stringify({ type: 'MODIFIED', object: slice(i, endpoints, ++sent) })}\n`)
    if (sent === until) clearInterval(timer)
  }, everyMs)
}
