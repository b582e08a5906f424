// Fuzzes the listeners: while hostile clients connect all the time, a client that behaves is always answered, and memory stays bounded.

import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { request as requestHttp } from 'node:http'
import { type RequestOptions, request as requestHttps } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ApiServer } from '../../src/apiserver/start.ts'
import type { AdminAnswers } from '../../src/http/admin.ts'
import { listenAdmin } from '../../src/http/admin-listener.ts'
import { ProxyHealth } from '../../src/http/health.ts'
import { type Exchange, replyText, routeRequests } from '../../src/http/routing.ts'
import { healthLimits, listen } from '../../src/http/server.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { service, start } from '../apiserver/test-server.ts'
import { type AttackedListener, attackOnce } from './hostile-clients.ts'
import { Random } from './random.ts'

const seconds = Number(process.env.HOSTILE_LISTENERS ?? 6)
const seed = Number(process.env.HOSTILE_SEED ?? 1)
/** Hostile clients at the same time, for each listener. */
const crowd = 40
/** A client that behaves waits so long at most; the machine that tests run on may be busy. */
const patienceMs = 20_000

/** A listener, and the question of a client that behaves. */
interface Subject extends AttackedListener {
  ask(): Promise<number>
}

const closers: (() => unknown)[] = []
const subjects: Subject[] = []
let folder: string

/** Sends one request on a connection of its own. Returns the status code. */
async function askFor(options: RequestOptions & { readonly isTls?: boolean }): Promise<number> {
  const { isTls = false, ...rest } = options
  const send = isTls ? requestHttps : requestHttp
  const outgoing = send({ ...rest, agent: false, signal: AbortSignal.timeout(patienceMs) })
  outgoing.end()
  const [response] = await once(outgoing, 'response')
  response.resume()
  await once(response, 'end')
  return response.statusCode
}

async function addHttp(name: string, path: string, handler: Parameters<typeof listen>[0]['handler']): Promise<void> {
  const limits = name === 'health' ? { limits: healthLimits } : {}
  const { port, close } = await listen({ address: '127.0.0.1:0', handler, log, ...limits })
  closers.push(() => close(0))
  const where = { host: '127.0.0.1', port }
  subjects.push({ name, where, isTls: false, paths: [path, '/'], headers: '', ask: () => askFor({ ...where, path }) })
}

function addApiServer(server: ApiServer): void {
  const { hostname, port } = new URL(server.url)
  const where = { host: hostname, port: Number(port) }
  const path = '/api/v1/namespaces/default/services'
  const headers = { authorization: `Bearer ${server.token}` }
  subjects.push({
    name: 'embedded API server',
    where,
    isTls: true,
    paths: ['/', '/healthz', path, `${path}/web`, '/openapi/v2', '/apis', '/version'],
    headers: `Authorization: ${headers.authorization}`,
    ask: () => askFor({ ...where, path, headers, isTls: true, rejectUnauthorized: false }),
  })
}

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-listeners-'))
  const health = new ProxyHealth({ timeoutMs: 3_600_000, clock: systemClock })
  await addHttp('health', '/livez', routeRequests(health.routes, log))
  const metrics = { '/metrics': ({ response }: Exchange) => replyText(response, 200, 'up 1\n'.repeat(20_000)) }
  await addHttp('metrics', '/metrics', routeRequests(metrics, log))
  const socketPath = join(folder, 'admin.sock')
  const answers = { summary: () => ({ services: 0 }) } as unknown as AdminAnswers
  const admin = await listenAdmin(socketPath, answers, log)
  closers.push(() => admin.close())
  subjects.push({
    name: 'admin socket',
    where: { path: socketPath },
    isTls: false,
    paths: ['/v1/summary', '/v1/services', '/v1/explain', '/v1/inputs', '/v1/events'],
    headers: '',
    ask: () => askFor({ socketPath, path: '/v1/summary' }),
  })
  const server = await start()
  closers.push(() => server.close())
  server.registry.put('services', service('web', {}, { namespace: 'default' }) as never)
  addApiServer(server)
})

afterAll(async () => {
  for (const close of closers.reverse()) await close()
  rmSync(folder, { recursive: true, force: true })
})

async function attackUntil(end: number, subject: Subject, random: Random): Promise<number> {
  let clients = 0
  while (Date.now() < end) {
    await attackOnce(subject, random)
    clients++
  }
  return clients
}

async function askUntil(end: number, subject: Subject): Promise<readonly string[]> {
  const answers: string[] = []
  while (Date.now() < end) {
    answers.push(String(await subject.ask().catch((error) => error)))
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  return answers
}

const megabytes = () => process.memoryUsage().rss / 2 ** 20

describe('listeners', () => {
  it(`answer a client that behaves while ${crowd} others each do not, for ${seconds} s, seed ${seed}`, {
    timeout: (seconds + 120) * 1000,
  }, async () => {
    expect(await Promise.all(subjects.map((subject) => subject.ask()))).toEqual([200, 200, 200, 200])
    const before = megabytes()
    const end = Date.now() + seconds * 1000
    const results = await Promise.all(
      subjects.map(async (subject, i) => {
        const attacks = Array.from({ length: crowd }, (_, n) =>
          attackUntil(end, subject, new Random(seed * 1_000_000 + i * 1000 + n)),
        )
        const answers = await askUntil(end, subject)
        const clients = (await Promise.all(attacks)).reduce((sum, count) => sum + count, 0)
        return { name: subject.name, clients, answers }
      }),
    )
    for (const { name, clients, answers } of results) {
      console.log(`${name}: ${clients} hostile clients, ${answers.length} questions`)
      expect({ name, failed: answers.filter((answer) => answer !== '200') }).toEqual({ name, failed: [] })
      expect(answers.length).toBeGreaterThan(0)
    }
    console.log(`${before.toFixed()} to ${megabytes().toFixed()} MB, with the clients in the same process`)
    expect(megabytes() - before).toBeLessThan(250)
  })
})
