import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { gzipSync } from 'node:zlib'
import { afterEach, describe, expect, it } from 'vitest'
import { type Client, defaultUserAgent, type RequestObserver } from '../../src/kube/client.ts'
import { bytesPerTurn, readLines } from '../../src/kube/message-stream.ts'
import { TokenBucket } from '../../src/kube/rate-limiter.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { fastClock } from '../support/fast-clock.ts'
import {
  type Answer,
  clientTo,
  connectionTo,
  hang,
  hangUp,
  json,
  lines,
  refuse,
  ScriptServer,
} from './script-server.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

async function serve(answer: Answer | readonly Answer[]): Promise<ScriptServer> {
  const server = await new ScriptServer(answer).start()
  cleanups.push(() => server.stop())
  return server
}

function open(...args: Parameters<typeof clientTo>): Client {
  const client = clientTo(...args)
  cleanups.push(() => client.close())
  return client
}

const failure = (promise: Promise<unknown>): Promise<ProxyError> =>
  promise.then(
    () => {
      throw new Error('it should have failed')
    },
    (error) => {
      expect(error).toBeInstanceOf(ProxyError)
      return error
    },
  )

async function collect(stream: AsyncIterable<readonly (string | Buffer)[]>): Promise<(string | Buffer)[]> {
  const all: (string | Buffer)[] = []
  for await (const batch of stream) all.push(...batch)
  return all
}

describe('requests', () => {
  it('requests JSON with our user agent, and sends bodies as JSON', async () => {
    const server = await serve(json({ ok: true }))
    const client = open(connectionTo(`${server.url}/prefix/`, { headers: { 'impersonate-user': 'jane' } }), undefined, {
      userAgent: defaultUserAgent,
    })
    const query = { a: 'x y', b: undefined }
    const answer = await client.request({
      method: 'PATCH',
      path: '/p',
      query,
      body: { n: 1 },
      contentType: 'application/merge-patch+json',
    })
    expect(answer).toEqual({ status: 200, json: { ok: true } })
    const [seen] = server.seen
    expect(seen).toMatchObject({ method: 'PATCH', path: '/prefix/p' })
    expect([...(seen?.query ?? [])]).toEqual([['a', 'x y']])
    expect(await seen?.body).toBe('{"n":1}')
    expect(seen?.headers).toMatchObject({
      accept: 'application/json',
      'accept-encoding': 'gzip',
      'content-type': 'application/merge-patch+json',
      'impersonate-user': 'jane',
      'user-agent': 'kube-proxy/v1.36.4 (linux/amd64) sluice',
    })
  })

  it('reads a compressed list', async () => {
    const items = Array.from({ length: 5_000 }, (_, i) => ({ i }))
    const server = await serve((response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(JSON.stringify({ items })))
    })
    expect((await open(connectionTo(server.url)).request({ path: '/' })).json).toEqual({ items })
  })

  it('refuses an answer that is compressed far more than lists are, before it is large', async () => {
    const server = await serve((response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(`{"items":[]${' '.repeat(8 << 20)}}`))
    })
    const error = await failure(open(connectionTo(server.url)).request({ path: '/' }))
    expect(error.message).toContain('is compressed to less than 1/200 of its size')
  })

  it('keeps its connection', async () => {
    const server = await serve(json({}))
    const client = open(connectionTo(server.url))
    for (let i = 0; i < 5; i++) await client.request({ path: '/' })
    expect(new Set(server.seen.map((seen) => seen.raw.socket.remotePort)).size).toBe(1)
  })

  it('repeats a GET when the server has closed the idle connection, but no request that could then be done twice', async () => {
    const server = await serve([json({}), hangUp, json({ again: true }), hangUp])
    const client = open(connectionTo(server.url))
    await client.request({ path: '/' })
    expect((await client.request({ path: '/' })).json).toEqual({ again: true })
    expect((await failure(client.request({ method: 'POST', path: '/', body: {} }))).code).toBe('connection')
    expect(server.seen).toHaveLength(4)
  })

  it('repeats a GET for each idle connection that the server has closed', async () => {
    const server = await serve([
      ...Array.from({ length: 4 }, () => json({})),
      hangUp,
      hangUp,
      hangUp,
      json({ again: true }),
    ])
    const client = open(connectionTo(server.url))
    await Promise.all(Array.from({ length: 4 }, () => client.request({ path: '/' })))
    expect((await client.request({ path: '/' })).json).toEqual({ again: true })
  })

  it.each([
    [400, 'BadRequest', 'bad-request'],
    [401, 'Unauthorized', 'unauthorized'],
    [403, 'Forbidden', 'forbidden'],
    [404, 'NotFound', 'not-found'],
    [409, 'AlreadyExists', 'already-exists'],
    [409, 'Conflict', 'conflict'],
    [410, 'Expired', 'expired'],
    [422, 'Invalid', 'invalid'],
    [429, 'TooManyRequests', 'too-many-requests'],
    [500, 'InternalError', 'server-error'],
    [503, 'ServiceUnavailable', 'unavailable'],
    [504, 'Timeout', 'timeout'],
  ])('turns %i %s into %s, with the message of the server', async (status, reason, code) => {
    const server = await serve(refuse(status, reason, 'because'))
    const error = await failure(open(connectionTo(server.url)).request({ path: '/x' }))
    expect(error.code).toBe(code)
    expect(error.message).toBe(`GET ${server.url}/x: ${status} because`)
    expect(error.fields).toMatchObject({ status, reason })
  })

  it('recognises a resource version that is too large, in the old form and the new', async () => {
    const cause = { details: { retryAfterSeconds: 1, causes: [{ reason: 'ResourceVersionTooLarge' }] } }
    const server = await serve([
      refuse(504, 'Timeout', 'x', cause),
      refuse(504, 'Timeout', 'Too large resource version: 5, current: 4'),
    ])
    const client = open(connectionTo(server.url))
    const error = await failure(client.request({ path: '/' }))
    expect(error.code).toBe('resource-version-too-large')
    expect(error.fields.retryAfterMs).toBe(1000)
    expect((await failure(client.request({ path: '/' }))).code).toBe('resource-version-too-large')
  })

  it('reports an answer that is not valid JSON', async () => {
    const server = await serve([
      (response) => void response.end('<html>'),
      (response) => void response.writeHead(502).end('<html>bad gateway</html>'),
      (response) => void response.writeHead(302, { location: '/y' }).end(),
    ])
    const client = open(connectionTo(server.url))
    expect((await failure(client.request({ path: '/' }))).code).toBe('bad-response')
    const gateway = await failure(client.request({ path: '/' }))
    expect(gateway.code).toBe('server-error')
    expect(gateway.message).toContain('bad gateway')
    expect((await failure(client.request({ path: '/' }))).code).toBe('bad-response')
  })

  it('retries when the server asks for it, at most ten times', async () => {
    const busy = json({}, 429, { 'retry-after': '2' })
    const clock = fastClock(1000)
    const retries: string[] = []
    const observer: RequestObserver = {
      request() {},
      throttled() {},
      retried: (_verb, _host, code) => retries.push(code),
    }
    const patient = await serve([busy, json({}, 503, { 'retry-after': '3' }), json({ ok: 1 })])
    expect((await open(connectionTo(patient.url), clock, { observer }).request({ path: '/' })).json).toEqual({ ok: 1 })
    expect(clock.waits).toEqual(expect.arrayContaining([2000, 3000]))
    expect(retries).toEqual(['429', '503'])
    const never = await serve(busy)
    const error = await failure(open(connectionTo(never.url), clock).request({ path: '/' }))
    expect(error.code).toBe('too-many-requests')
    expect(error.fields.retryAfterMs).toBe(2000)
    expect(never.seen).toHaveLength(11)
  })

  it('gives up on a server that does not answer, or stops in the middle of an answer', async () => {
    const half: Answer = (response) => void response.writeHead(200).write('{"a":')
    const client = open(connectionTo((await serve([hang, half, hangUp])).url), fastClock(500))
    expect(await failure(client.request({ path: '/' }))).toMatchObject({
      code: 'timeout',
      message: expect.stringContaining('no answer'),
    })
    expect(await failure(client.request({ path: '/' }))).toMatchObject({
      code: 'timeout',
      message: expect.stringContaining('stopped'),
    })
    expect((await failure(client.request({ path: '/' }))).code).toBe('connection')
  })

  it('reports a body that breaks off', async () => {
    const cut: Answer = (response) => {
      response.writeHead(200, { 'content-length': '100' }).write('{"items":[]}')
      setTimeout(() => response.socket?.destroy(), 5)
    }
    const gzipped: Answer = (response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' }).write(gzipSync('{}').subarray(0, 12))
      setTimeout(() => response.socket?.destroy(), 5)
    }
    const client = open(connectionTo((await serve([cut, gzipped])).url))
    expect((await failure(client.request({ path: '/' }))).code).toBe('connection')
    expect((await failure(client.request({ path: '/' }))).code).toBe('connection')
  })

  it('reports an answer that switches to another protocol, which nobody asked for', async () => {
    const switching: Answer = (response) =>
      response.socket?.end('HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n')
    const client = open(connectionTo((await serve(switching)).url))
    expect((await failure(client.request({ path: '/' }))).code).toBe('connection')
  })

  it('names the server that it cannot reach', async () => {
    const server = await new ScriptServer(hang).start()
    await server.stop()
    const error = await failure(open(connectionTo(server.url)).request({ path: '/x' }))
    expect(error.code).toBe('connection')
    expect(error.message).toMatch(/^GET http:\/\/127\.0\.0\.1:\d+\/x: .*ECONNREFUSED/)
  })

  it('stops when the signal aborts before, during and after the head of the answer', async () => {
    const server = await serve([hang, (response) => void response.writeHead(200).write('{')])
    const client = open(connectionTo(server.url))
    await expect(client.request({ path: '/', signal: AbortSignal.abort(new Error('early')) })).rejects.toThrow('early')
    for (const reason of ['waiting', 'reading']) {
      const controller = new AbortController()
      const asked = client.request({ path: '/', signal: controller.signal })
      setTimeout(() => controller.abort(new Error(reason)), 30)
      await expect(asked).rejects.toThrow(reason)
    }
  })

  it('reports every request to the observer', async () => {
    const server = await serve([json({}), refuse(404, 'NotFound'), hangUp])
    const seen: unknown[] = []
    const throttled: number[] = []
    const observer: RequestObserver = {
      request: ({ verb, code, requestBytes, watch }) => seen.push({ verb, code, requestBytes, watch }),
      throttled: (_verb, _host, ms) => throttled.push(ms),
      retried() {},
    }
    const client = open(connectionTo(server.url), undefined, { observer })
    await client.request({ method: 'POST', path: '/', body: {} })
    await failure(client.request({ path: '/' }))
    await failure(client.stream({ path: '/' }))
    expect(seen).toEqual([
      { verb: 'POST', code: '200', requestBytes: 2, watch: false },
      { verb: 'GET', code: '404', requestBytes: 0, watch: false },
      { verb: 'GET', code: '<error>', requestBytes: 0, watch: true },
    ])
    expect(throttled).toEqual([0, 0])
  })
})

describe('streams', () => {
  it('yields the event loop after some bytes, even if more bytes are there', async () => {
    let turns = 0
    let running = true
    const count = () => {
      turns++
      if (running) setImmediate(count)
    }
    setImmediate(count)
    const chunk = Buffer.from(`${'x'.repeat(1023)}\n`.repeat(8))
    async function* plenty() {
      for (let i = 0; i < 400; i++) yield chunk
    }
    let [bytes, most, seen] = [0, 0, 0]
    for await (const batch of readLines(Readable.from(plenty()), { maxBytes: 10_000 })) {
      if (turns !== seen) bytes = 0
      seen = turns
      bytes += batch.length * 1024
      most = Math.max(most, bytes)
    }
    running = false
    expect(most).toBeLessThanOrEqual(bytesPerTurn + chunk.length)
    expect(turns).toBeGreaterThanOrEqual((400 * chunk.length) / bytesPerTurn - 1)
  })

  it('yields only whole lines, and drops the half line at the end', async () => {
    const server = await serve((response) => {
      response.writeHead(200)
      const [first, second] = [Buffer.from('{"a":1}\n{"b":"ü').subarray(0, -1), Buffer.from('ü').subarray(1)]
      response.write(first)
      setTimeout(() => response.write(second), 5)
      setTimeout(() => response.end('"}\n\n{"c":1'), 10)
    })
    expect(await collect(await open(connectionTo(server.url)).stream({ path: '/' }))).toEqual(['{"a":1}', '{"b":"ü"}'])
    expect(server.seen[0]?.headers['accept-encoding']).toBeUndefined()
  })

  it('throws when the connection breaks', async () => {
    const server = await serve(lines(['a\n', 'b'], 'cut'))
    const stream = await open(connectionTo(server.url)).stream({ path: '/' })
    const got: (string | Buffer)[] = []
    const reading = (async () => {
      for await (const batch of stream) got.push(...batch)
    })()
    expect((await failure(reading)).code).toBe('connection')
    expect(got).toEqual(['a'])
  })

  it('stops in the middle with the reason of the signal', async () => {
    const server = await serve(lines(['a\n'], 'open'))
    const controller = new AbortController()
    const stream = await open(connectionTo(server.url)).stream({ path: '/', signal: controller.signal })
    const reading = collect(stream)
    setTimeout(() => controller.abort(new Error('enough')), 20)
    await expect(reading).rejects.toThrow('enough')
  })

  it('does not read ahead of a slow reader', async () => {
    let written = 0
    const line = `${'x'.repeat(65_535)}\n`
    const server = await serve((response) => {
      response.writeHead(200)
      const more = () => {
        while (written < 2_000 && !response.destroyed) {
          written++
          if (!response.write(line)) return void response.once('drain', more)
        }
      }
      more()
    })
    const stream = await open(connectionTo(server.url)).stream({ path: '/' })
    await stream.next()
    await new Promise((resolve) => setTimeout(resolve, 200))
    expect(written).toBeLessThan(1_000)
    await stream.return?.()
  })

  it('refuses a line that does not end', async () => {
    async function* endless() {
      for (;;) yield Buffer.alloc(1000, 'x')
    }
    const error = await failure(collect(readLines(Readable.from(endless()), { maxBytes: 10_000 })))
    expect(error.code).toBe('line-too-long')
  })

  it('is not held back by the rate limit', async () => {
    const server = await serve(lines([], 'end'))
    const client = open(connectionTo(server.url), undefined, { qps: 0.001, burst: 1 })
    for (let i = 0; i < 5; i++) await collect(await client.stream({ path: '/' }))
    expect(server.seen).toHaveLength(5)
  })
})

describe('credentials', () => {
  const withToken =
    (good: () => string): Answer =>
    (response, seen) =>
      (seen.headers.authorization === `Bearer ${good()}` ? json({}) : refuse(401, 'Unauthorized'))(response, seen)

  function temporary(): string {
    const dir = mkdtempSync(join(tmpdir(), 'kube-client-'))
    cleanups.push(() => rmSync(dir, { recursive: true }))
    return dir
  }

  it('sends tokens and passwords', async () => {
    const server = await serve(json({}))
    await open(connectionTo(server.url, { auth: { kind: 'token', token: 't' } })).request({ path: '/' })
    await open(connectionTo(server.url, { auth: { kind: 'basic', username: 'u', password: 'p' } })).request({
      path: '/',
    })
    expect(server.seen.map((seen) => seen.headers.authorization)).toEqual(['Bearer t', 'Basic dTpw'])
  })

  it('reads a rotated token after a minute, before any refusal', async () => {
    const server = await serve(json({}))
    const file = join(temporary(), 'token')
    writeFileSync(file, 'old\n')
    let now = 0
    const clock = { ...fastClock(1), monotonic: () => now }
    const client = open(connectionTo(server.url, { auth: { kind: 'token-file', file, token: '' } }), clock)
    await client.request({ path: '/' })
    writeFileSync(file, 'new\n')
    now = 59_000
    await client.request({ path: '/' })
    now = 61_000
    await client.request({ path: '/' })
    rmSync(file)
    now = 200_000
    await client.request({ path: '/' })
    expect(server.seen.map((seen) => seen.headers.authorization)).toEqual([
      'Bearer old',
      'Bearer old',
      'Bearer new',
      'Bearer new',
    ])
  })

  it('reads the token again after a refusal, and repeats the request once', async () => {
    let good = 'old'
    const server = await serve(withToken(() => good))
    const file = join(temporary(), 'token')
    writeFileSync(file, 'old')
    const client = open(connectionTo(server.url, { auth: { kind: 'token-file', file, token: '' } }))
    await client.request({ path: '/' })
    good = 'new'
    writeFileSync(file, 'new')
    await client.request({ path: '/' })
    good = 'never'
    expect((await failure(client.stream({ path: '/' }))).code).toBe('unauthorized')
    expect(server.seen).toHaveLength(5)
  })

  it('runs an exec plugin once, until its credential expires or is refused', async () => {
    const dir = temporary()
    const script = join(dir, 'plugin')
    const expires = '2030-01-01T00:00:00Z'
    writeFileSync(
      script,
      `#!/bin/sh
echo "$KUBERNETES_EXEC_INFO" > ${dir}/info
echo run >> ${dir}/runs
n=$(wc -l < ${dir}/runs | tr -d ' ')
printf '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"%s-%s-%s","expirationTimestamp":"${expires}"}}' "$1" "$EXTRA" "$n"
`,
      { mode: 0o755 },
    )
    const plugin = {
      apiVersion: 'client.authentication.k8s.io/v1',
      command: script,
      args: ['arg'],
      env: { EXTRA: 'env' },
      installHint: '',
      cluster: { server: 'https://x' },
    }
    let now = Date.parse(expires) - 10_000
    const clock = { ...fastClock(1), now: () => now }
    let good = 'arg-env-1'
    const server = await serve(withToken(() => good))
    const client = open(connectionTo(server.url, { auth: { kind: 'exec', plugin } }), clock)
    await Promise.all([client.request({ path: '/' }), client.request({ path: '/' }), client.request({ path: '/' })])
    good = 'arg-env-2'
    await client.request({ path: '/' })
    now = Date.parse(expires) + 1
    good = 'arg-env-3'
    await client.request({ path: '/' })
    expect(server.seen).toHaveLength(6)
    const info = JSON.parse(readFileSync(join(dir, 'info'), 'utf8'))
    expect(info).toEqual({
      kind: 'ExecCredential',
      apiVersion: 'client.authentication.k8s.io/v1',
      spec: { interactive: false, cluster: { server: 'https://x' } },
    })
  })

  it.each([
    ['exit 3', 'echo "no luck" >&2; exit 3', 'no luck'],
    ['no JSON', 'echo hello', 'not valid JSON'],
    [
      'another version',
      `echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","status":{"token":"t"}}'`,
      'v1beta1',
    ],
    ['no status', `echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1"}'`, 'no status'],
    [
      'nothing in it',
      `echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{}}'`,
      'neither',
    ],
    [
      'a certificate only',
      `echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"clientCertificateData":"c"}}'`,
      'together',
    ],
  ])('names the exec plugin that fails: %s', async (_, body, message) => {
    const command = join(temporary(), 'plugin')
    writeFileSync(command, `#!/bin/sh\n${body}\n`, { mode: 0o755 })
    const plugin = {
      apiVersion: 'client.authentication.k8s.io/v1',
      command,
      args: [],
      env: {},
      installHint: '',
      cluster: undefined,
    }
    const server = await serve(json({}))
    const error = await failure(
      open(connectionTo(server.url, { auth: { kind: 'exec', plugin } })).request({ path: '/' }),
    )
    expect(error.code).toBe('credentials')
    expect(error.message).toContain(message)
    expect(error.message).toContain(command)
    expect(server.seen).toHaveLength(0)
  })

  it('does not wait for a plugin when the signal aborts', async () => {
    const command = join(temporary(), 'plugin')
    writeFileSync(command, '#!/bin/sh\nexec sleep 3\n', { mode: 0o755 })
    const plugin = {
      apiVersion: 'client.authentication.k8s.io/v1',
      command,
      args: [],
      env: {},
      installHint: '',
      cluster: undefined,
    }
    const client = open(connectionTo('http://127.0.0.1:1', { auth: { kind: 'exec', plugin } }))
    const controller = new AbortController()
    const asked = client.request({ path: '/', signal: controller.signal })
    setTimeout(() => controller.abort(new Error('enough')), 20)
    const started = performance.now()
    await expect(asked).rejects.toThrow('enough')
    expect(performance.now() - started).toBeLessThan(2_000)
  })

  it('shows the install hint of a plugin that is not installed', async () => {
    const plugin = {
      apiVersion: 'client.authentication.k8s.io/v1',
      command: 'no-such-plugin-here',
      args: [],
      env: {},
      installHint: 'Install it from somewhere',
      cluster: undefined,
    }
    const error = await failure(
      open(connectionTo('http://127.0.0.1:1', { auth: { kind: 'exec', plugin } })).request({ path: '/' }),
    )
    expect(error.message).toContain('no such program. Install it from somewhere')
  })
})

describe('rate limit', () => {
  it('lets a burst through, then spaces requests', async () => {
    const clock = fastClock(100)
    const frozen = { ...clock, monotonic: () => 0 }
    const bucket = new TokenBucket(5, 3, frozen)
    const waits = await Promise.all(Array.from({ length: 6 }, () => bucket.acquire()))
    expect(waits).toEqual([0, 0, 0, 200, 400, 600])
  })

  it('refills with time, up to the burst', async () => {
    let at = 0
    const clock = { ...fastClock(1000), monotonic: () => at }
    const bucket = new TokenBucket(10, 2, clock)
    expect([await bucket.acquire(), await bucket.acquire(), await bucket.acquire()]).toEqual([0, 0, 100])
    at = 60_000
    expect([await bucket.acquire(), await bucket.acquire(), await bucket.acquire()]).toEqual([0, 0, 100])
  })

  it('passes the token of an aborted request to the next one', async () => {
    const bucket = new TokenBucket(1, 1, { ...fastClock(1000), monotonic: () => 0 })
    await bucket.acquire()
    await expect(bucket.acquire(AbortSignal.abort(new Error('left')))).rejects.toThrow('left')
    expect(await bucket.acquire()).toBe(1000)
  })

  it('has no limit below zero, and the default at zero', async () => {
    const clock = { ...fastClock(1000), monotonic: () => 0 }
    const unlimited = new TokenBucket(-1, 0, clock)
    for (let i = 0; i < 100; i++) expect(await unlimited.acquire()).toBe(0)
    const standard = new TokenBucket(0, 0, clock)
    const waits = await Promise.all(Array.from({ length: 11 }, () => standard.acquire()))
    expect(waits[9]).toBe(0)
    expect(waits[10]).toBe(200)
  })
})
