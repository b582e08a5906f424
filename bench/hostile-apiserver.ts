// A scripted API server as a separate process: some ordinary services, one of which is measured, and hostile objects on demand.
// As a real one, it answers in protobuf if the client prefers that, and in JSON otherwise.
//
//   hostile-apiserver SERVICES      prints its port; the last service is measured: it has one endpoint
//   GET /hostile?kind=N&do=prepare             makes the objects of that kind: what this server needs for them is no time of a proxy
//   GET /hostile?kind=N&do=come|change|go      adds, changes or deletes them

import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { lastVersion, probeSlice, service, slice } from './api-objects.ts'
import { type HostileObjects, hostileObjects } from './hostile-objects.ts'
import { answerOther, chooseForm, type EventType, type ObjectForm } from './object-forms.ts'

const count = Number(process.argv[2])

/** A watch that a client holds open, in the form that it asked for. */
interface Watch {
  readonly form: ObjectForm
  readonly response: ServerResponse
}

const plurals = ['services', 'endpointslices'] as const
type Watched = (typeof plurals)[number]
const watches = new Map<Watched, Watch>()
const makeObject: Readonly<Record<Watched, (i: number) => object>> = {
  services: service,
  endpointslices: (i) => (i === count - 1 ? probeSlice(i, 0) : slice(i, 5, 0)),
}

/** The events of each step for the two watches. The API server sends each event as a part of its own. */
const prepared = new Map<string, Readonly<Record<Watched, readonly Buffer[]>>>()

const server = createServer((request, response) => {
  const url = new URL(request.url as string, 'http://localhost')
  const word = (name: string) => url.searchParams.get(name) ?? ''
  const watched = plurals.find((plural) => url.pathname.endsWith(`/${plural}`))
  if (url.pathname === '/hostile') {
    act(Number(word('kind')), word('do'))
    response.end('{}')
  } else if (watched !== undefined) {
    const form = chooseForm(watched, request.headers.accept)
    response.setHeader('content-type', form.watchType)
    watches.set(watched, { form, response })
    for (let i = 0; i < count; i++) response.write(form.writeEvent('ADDED', makeObject[watched](i)))
    response.write(form.writeBookmark(lastVersion()))
  } else if (url.pathname === '/probe') {
    const object = probeSlice(count - 1, Number(word('turn')))
    for (const event of encode('endpointslices', 'MODIFIED', [object])) {
      watches.get('endpointslices')?.response.write(event)
    }
    response.end('{}')
  } else answerOther(request, url, response)
})
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
process.on('disconnect', () => process.exit())

function act(kind: number, what: string): void {
  if (what === 'prepare') prepare((hostileObjects[kind] as () => HostileObjects)())
  for (const plural of plurals) {
    for (const event of prepared.get(what)?.[plural] ?? []) watches.get(plural)?.response.write(event)
  }
}

/** Encodes events in the form of the watch that will get them. */
function encode(plural: Watched, type: EventType, objects: readonly object[]): readonly Buffer[] {
  const form = watches.get(plural)?.form ?? chooseForm(plural)
  return objects.map((object) => form.writeEvent(type, object))
}

function prepare({ services, slices, changed }: HostileObjects): void {
  const encodeAll = (type: EventType) => ({
    services: encode('services', type, services),
    endpointslices: encode('endpointslices', type, slices),
  })
  prepared.set('come', encodeAll('ADDED'))
  prepared.set('change', {
    services: [],
    endpointslices: encode('endpointslices', 'MODIFIED', changed === undefined ? [] : [changed]),
  })
  prepared.set('go', encodeAll('DELETED'))
}
