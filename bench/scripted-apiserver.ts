// A scripted API server as a separate process: it sends a snapshot of services and slices as WatchList, then endpoint changes on demand.
// As a real one, it answers in protobuf if the client prefers that, and in JSON otherwise.
//
//   scripted-apiserver SERVICES ENDPOINTS [PROBE]      prints its port; with PROBE 1 the last service is measured: it has one endpoint

import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { lastVersion, nth, probeSlice, service, slice } from './api-objects.ts'
import { answerOther, chooseForm, type EventType, type ObjectForm } from './object-forms.ts'

const [services, endpoints, probe = 0] = process.argv.slice(2).map(Number) as [number, number, number?]
let sent = 0

/** A watch that a client holds open, in the form that it asked for. */
interface Watch {
  readonly form: ObjectForm
  readonly response: ServerResponse
}

type Watched = 'services' | 'endpointslices'
const watches = new Map<Watched, Watch>()
const makeObject: Readonly<Record<Watched, (i: number) => object>> = {
  services: service,
  endpointslices: (i) => (probe === 1 && i === services - 1 ? probeSlice(i, 0) : slice(i, endpoints, 0)),
}

/** The events of a snapshot by resource and form: they are encoded once, before a client waits for them. */
const snapshots = new Map<string, readonly Buffer[]>()

const server = createServer((request, response) => {
  const url = new URL(request.url as string, 'http://localhost')
  const word = (name: string, otherwise = 1) => Number(url.searchParams.get(name) ?? otherwise)
  const watched = (['services', 'endpointslices'] as const).find((plural) => url.pathname.endsWith(`/${plural}`))
  if (url.pathname === '/changes') {
    change(word('count'), word('everyMs'), word('atOnce'))
    response.end('{}')
  } else if (watched !== undefined) {
    const form = chooseForm(watched, request.headers.accept)
    response.setHeader('content-type', form.watchType)
    watches.set(watched, { form, response })
    void stream(response, form, watched)
  } else if (url.pathname === '/pair') {
    const i = word('service')
    send('services', 'ADDED', service(i))
    setTimeout(
      () => {
        send('endpointslices', 'ADDED', probeSlice(i, 0))
        response.end('{}')
      },
      word('gapMs', 0),
    )
  } else if (url.pathname === '/probe') {
    send('endpointslices', 'MODIFIED', probeSlice(services - 1, word('turn', 0)))
    response.end('{}')
  } else answerOther(request, url, response)
})
for (const plural of ['services', 'endpointslices'] as const) {
  encodeSnapshot(plural, chooseForm(plural, 'application/vnd.kubernetes.protobuf'))
}
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
process.on('disconnect', () => process.exit())

function send(plural: Watched, type: EventType, object: object): void {
  const watch = watches.get(plural)
  watch?.response.write(watch.form.writeEvent(type, object))
}

function encodeSnapshot(plural: Watched, form: ObjectForm): readonly Buffer[] {
  const key = `${plural} ${form.type}`
  const known = snapshots.get(key)
  if (known !== undefined) return known
  const events = Array.from({ length: services }, (_, i) => form.writeEvent('ADDED', makeObject[plural](i)))
  snapshots.set(key, events)
  return events
}

/** Sends the objects as fast as the client reads them. */
async function stream(response: ServerResponse, form: ObjectForm, plural: Watched): Promise<void> {
  for (const event of encodeSnapshot(plural, form)) {
    if (!response.write(event)) await new Promise<void>((resolve) => response.once('drain', resolve))
  }
  response.write(form.writeBookmark(lastVersion()))
}

/** Changes one endpoint of one slice at a time, over all services; `atOnce` slices in each write. */
function change(count: number, everyMs: number, atOnce: number): void {
  const until = sent + count
  const timer = setInterval(() => {
    const watch = watches.get('endpointslices')
    const events: Buffer[] = []
    for (let n = 0; n < atOnce && sent < until; n++) {
      const object = slice(nth(sent, services - probe), endpoints, ++sent)
      if (watch !== undefined) events.push(watch.form.writeEvent('MODIFIED', object))
    }
    watch?.response.write(Buffer.concat(events))
    if (sent === until) clearInterval(timer)
  }, everyMs)
}
