import { afterEach, describe, expect, it } from 'vitest'
import { EventRecorder, type Occurrence } from '../../src/kube/events.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { fastClock } from '../support/fast-clock.ts'
import { until } from '../support/until.ts'
import { type Answer, clientTo, connectionTo, hangUp, json, refuse, ScriptServer } from './script-server.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

const starting: Occurrence = {
  type: 'Normal',
  reason: 'Starting',
  action: 'StartKubeProxy',
  note: '',
  regarding: { apiVersion: 'v1', kind: 'Node', namespace: '', name: 'node-1' },
}
const bindFailure = (name: string, note = 'cannot bind'): Occurrence => ({
  type: 'Warning',
  reason: 'FailedToStartServiceHealthcheck',
  action: 'Listen',
  note,
  regarding: { apiVersion: 'v1', kind: 'Service', namespace: 'ns', name, uid: 'u1' },
})

async function setUp(answer: Answer | readonly Answer[], factor = 1000) {
  const server = await new ScriptServer(answer).start()
  const clock = fastClock(factor)
  let now = Date.UTC(2026, 0, 2)
  const manual = { ...clock, now: () => now }
  const client = clientTo(connectionTo(server.url))
  const recorder = new EventRecorder({ client, clock: manual, hostname: 'host-1', log: silentLogger, random: () => 0 })
  const controller = new AbortController()
  const running = recorder.run(controller.signal)
  cleanups.push(async () => {
    controller.abort(new Error('over'))
    await running
    client.close()
    await server.stop()
  })
  const bodies = () => Promise.all(server.seen.map(async (seen) => JSON.parse(await seen.body)))
  const pass = (ms: number) => {
    now += ms
  }
  return { server, clock, recorder, bodies, pass }
}

describe('events', () => {
  it('are recorded about an object whose namespace has half a surrogate pair', async () => {
    const { server, recorder } = await setUp(json({}, 201))
    const { regarding } = bindFailure('web')
    recorder.record({ ...bindFailure('web'), regarding: { ...regarding, namespace: 'a\ud800' } })
    await until('the request', () => server.seen.length === 1)
    expect(server.seen[0]?.path).toBe('/apis/events.k8s.io/v1/namespaces/a%EF%BF%BD/events')
  })

  it('writes the start-up event as kube-proxy does', async () => {
    const { server, recorder, bodies } = await setUp(json({}, 201))
    recorder.record(starting)
    await until('the request', () => server.seen.length === 1)
    expect(server.seen[0]).toMatchObject({ method: 'POST', path: '/apis/events.k8s.io/v1/namespaces/default/events' })
    const [event] = await bodies()
    expect(event).toEqual({
      apiVersion: 'events.k8s.io/v1',
      kind: 'Event',
      metadata: { name: expect.stringMatching(/^node-1\.[0-9a-f]{16}$/), namespace: 'default' },
      eventTime: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/),
      reportingController: 'kube-proxy',
      reportingInstance: 'kube-proxy-host-1',
      type: 'Normal',
      reason: 'Starting',
      action: 'StartKubeProxy',
      note: '',
      regarding: { apiVersion: 'v1', kind: 'Node', name: 'node-1' },
    })
  })

  it('uses another name if the name of the object cannot be part of one', async () => {
    const { server, recorder, bodies } = await setUp(json({}, 201))
    recorder.record({ ...starting, regarding: { ...starting.regarding, name: 'Node_1' } })
    recorder.record({ ...starting, regarding: { ...starting.regarding, name: 'n'.repeat(250) } })
    await until('both', () => server.seen.length === 2)
    for (const event of await bodies()) expect(event.metadata.name).toMatch(/^[0-9a-f-]{36}$/)
  })

  it('shortens a note that is too long for the API server', async () => {
    const { server, recorder, bodies } = await setUp(json({}, 201))
    recorder.record(bindFailure('a', 'ü'.repeat(2_000)))
    await until('the request', () => server.seen.length === 1)
    const [event] = await bodies()
    expect(Buffer.byteLength(event.note)).toBeLessThanOrEqual(1024)
    expect(event.note).toMatch(/^ü+\.\.\.$/)
  })

  it('turns repetitions into a series: sends the first at once, the rest when the series ends', async () => {
    const { server, clock, recorder, bodies, pass } = await setUp(json({}), 100_000)
    recorder.record(bindFailure('web'))
    recorder.record(bindFailure('other'))
    await until('both', () => server.seen.length === 2)
    recorder.record(bindFailure('web'))
    await until('the repeat', () => server.seen.length === 3)
    const name = (await bodies())[0].metadata.name
    expect(server.seen[2]).toMatchObject({
      method: 'PATCH',
      path: `/apis/events.k8s.io/v1/namespaces/ns/events/${name}`,
    })
    expect(server.seen[2]?.headers['content-type']).toBe('application/merge-patch+json')
    expect((await bodies())[2]).toEqual({ series: { count: 2, lastObservedTime: expect.stringMatching(/Z$/) } })
    recorder.record(bindFailure('web'))
    recorder.record(bindFailure('web'))
    pass(6 * 60_000)
    await until('the end of the series', () => server.seen.length === 4)
    expect((await bodies())[3].series.count).toBe(4)
    recorder.record(bindFailure('web'))
    await until('a new event', () => server.seen.length === 5)
    expect(server.seen[4]?.method).toBe('POST')
    expect(clock.waits.length).toBeGreaterThan(0)
  })

  it('sends an event again if it did not arrive, and notices if it did', async () => {
    const { server, clock, recorder } = await setUp([
      hangUp,
      refuse(500, 'InternalError'),
      refuse(409, 'AlreadyExists'),
      json({}),
    ])
    recorder.record(bindFailure('web'))
    await until('three tries', () => server.seen.length === 3)
    expect(clock.waits.filter((ms) => ms === 10_000)).toHaveLength(2)
    recorder.record(bindFailure('web'))
    await until('the repeat', () => server.seen.length === 4)
    expect(server.seen[3]?.method).toBe('PATCH')
  })

  it('gives up after twelve attempts or a refusal, and goes on with the next event', async () => {
    const { server, recorder } = await setUp([
      refuse(403, 'Forbidden'),
      ...Array<Answer>(12).fill(hangUp),
      json({}, 201),
    ])
    recorder.record(bindFailure('refused'))
    recorder.record(bindFailure('lost'))
    recorder.record(bindFailure('kept'))
    await until('all', () => server.seen.length === 14)
    expect(JSON.parse((await server.seen[13]?.body) as string).regarding.name).toBe('kept')
  })

  it('writes a series again when its event has been deleted', async () => {
    const { server, recorder, bodies } = await setUp([json({}, 201), refuse(404, 'NotFound'), json({}, 201)])
    recorder.record(bindFailure('web'))
    await until('the event', () => server.seen.length === 1)
    recorder.record(bindFailure('web'))
    await until('the new one', () => server.seen.length === 3)
    expect(server.seen.map((seen) => seen.method)).toEqual(['POST', 'PATCH', 'POST'])
    expect((await bodies())[2].series.count).toBe(2)
  })

  it('holds at most a thousand events, and no caller waits', async () => {
    const clock = fastClock(1)
    const sent: string[] = []
    const client = {
      request: async (request: { body?: unknown }) => {
        sent.push((request.body as { regarding: { name: string } }).regarding.name)
        return { status: 201, json: {} }
      },
    }
    const recorder = new EventRecorder({ client, clock, hostname: 'h', log: silentLogger })
    for (let i = 0; i < 1_500; i++) recorder.record(bindFailure(`s${i}`))
    const controller = new AbortController()
    const running = recorder.run(controller.signal)
    await until('all sent', () => sent.length >= 1000)
    controller.abort()
    await running
    expect(sent).toHaveLength(1000)
    expect(sent.at(-1)).toBe('s999')
  })
})
