// A scripted API server as a separate process: it sends a snapshot of services and slices as WatchList, then endpoint changes on demand.
//
//   scripted-apiserver SERVICES ENDPOINTS [PROBE]      prints its port; with PROBE 1 the last service is measured: it has one endpoint

import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { answerOther, bookmark, nth, probeSlice, service, slice } from './api-objects.ts'

const [services, endpoints, probe = 0] = process.argv.slice(2).map(Number) as [number, number, number?]
let slices: ServerResponse | undefined
let watchedServices: ServerResponse | undefined
let sent = 0

const server = createServer((request, response) => {
  const url = new URL(request.url as string, 'http://localhost')
  response.setHeader('content-type', 'application/json')
  if (url.pathname === '/changes') {
    const word = (name: string) => Number(url.searchParams.get(name) ?? 1)
    change(word('count'), word('everyMs'), word('atOnce'))
    response.end('{}')
  } else if (url.pathname.endsWith('/services')) {
    watchedServices = response
    void stream(response, 'Service', (i) => service(i))
  } else if (url.pathname.endsWith('/endpointslices')) {
    slices = response
    const last = probe === 0 ? -1 : services - 1
    void stream(response, 'EndpointSlice', (i) => (i === last ? probeSlice(i, 0) : slice(i, endpoints, 0)))
  } else if (url.pathname === '/pair') {
    const i = Number(url.searchParams.get('service'))
    watchedServices?.write(`${JSON.stringify({ type: 'ADDED', object: service(i) })}\n`)
    setTimeout(
      () => {
        slices?.write(`${JSON.stringify({ type: 'ADDED', object: probeSlice(i, 0) })}\n`)
        response.end('{}')
      },
      Number(url.searchParams.get('gapMs')),
    )
  } else if (url.pathname === '/probe') {
    const object = probeSlice(services - 1, Number(url.searchParams.get('turn')))
    slices?.write(`${JSON.stringify({ type: 'MODIFIED', object })}\n`)
    response.end('{}')
  } else answerOther(request.method === 'GET', url, response)
})
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
process.on('disconnect', () => process.exit())

/** Sends the objects as fast as the client reads them. */
async function stream(response: ServerResponse, kind: string, object: (i: number) => object): Promise<void> {
  for (let i = 0; i < services; i++) {
    if (!response.write(`${JSON.stringify({ type: 'ADDED', object: object(i) })}\n`)) {
      await new Promise<void>((resolve) => response.once('drain', resolve))
    }
  }
  response.write(bookmark(kind))
}

/** Changes one endpoint of one slice at a time, over all services; `atOnce` slices in each write. */
function change(count: number, everyMs: number, atOnce: number): void {
  const until = sent + count
  const timer = setInterval(() => {
    let lines = ''
    for (let n = 0; n < atOnce && sent < until; n++) {
      const i = nth(sent, services - probe)
      lines += `${JSON.stringify({ type: 'MODIFIED', object: slice(i, endpoints, ++sent) })}\n`
    }
    slices?.write(lines)
    if (sent === until) clearInterval(timer)
  }, everyMs)
}
