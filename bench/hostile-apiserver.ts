// A scripted API server as a separate process: some ordinary services, one of which is measured, and hostile objects on demand.
//
//   hostile-apiserver SERVICES      prints its port; the last service is measured: it has one endpoint
//   GET /hostile?kind=N&do=prepare             makes the objects of that kind: what this server needs for them is no time of a proxy
//   GET /hostile?kind=N&do=come|change|go      adds, changes or deletes them

import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { answerOther, bookmark, probeSlice, service, slice } from './api-objects.ts'
import { type HostileObjects, hostileObjects } from './hostile-objects.ts'

const count = Number(process.argv[2])
const watches: { services?: ServerResponse; slices?: ServerResponse } = {}
/** The lines of each step for the two watches. The API server sends each event as a part of its own. */
interface Lines {
  readonly services: string
  readonly slices: readonly string[]
}

const prepared = new Map<string, Lines>()

const line = (type: string, object: object) => `${JSON.stringify({ type, object })}\n`

const server = createServer((request, response) => {
  const url = new URL(request.url as string, 'http://localhost')
  const word = (name: string) => url.searchParams.get(name) ?? ''
  response.setHeader('content-type', 'application/json')
  if (url.pathname === '/hostile') {
    act(Number(word('kind')), word('do'))
    response.end('{}')
  } else if (url.pathname.endsWith('/services')) {
    watches.services = response
    for (let i = 0; i < count; i++) response.write(line('ADDED', service(i)))
    response.write(bookmark('Service'))
  } else if (url.pathname.endsWith('/endpointslices')) {
    watches.slices = response
    for (let i = 0; i < count; i++) response.write(line('ADDED', i === count - 1 ? probeSlice(i, 0) : slice(i, 5, 0)))
    response.write(bookmark('EndpointSlice'))
  } else if (url.pathname === '/probe') {
    watches.slices?.write(line('MODIFIED', probeSlice(count - 1, Number(word('turn')))))
    response.end('{}')
  } else answerOther(request.method === 'GET', url, response)
})
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
process.on('disconnect', () => process.exit())

function act(kind: number, what: string): void {
  if (what === 'prepare') prepare((hostileObjects[kind] as () => HostileObjects)())
  const lines = prepared.get(what)
  if (lines === undefined) return
  watches.services?.write(lines.services)
  for (const one of lines.slices) watches.slices?.write(one)
}

function prepare({ services, slices, changed }: HostileObjects): void {
  const all = (type: string): Lines => ({
    services: services.map((object) => line(type, object)).join(''),
    slices: slices.map((object) => line(type, object)),
  })
  prepared.set('come', all('ADDED'))
  prepared.set('change', { services: '', slices: changed === undefined ? [] : [line('MODIFIED', changed)] })
  prepared.set('go', all('DELETED'))
}
