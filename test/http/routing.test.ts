// Tests routing by path, replies to unknown paths, errors of routes, and request bodies.

import { afterEach, describe, expect, it } from 'vitest'
import { readBody, replyText, routeRequests } from '../../src/http/routing.ts'
import { type HttpListener, listen } from '../../src/http/server.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { ask, sendRaw } from './http-probe.ts'

const log = silentLogger
const open: { close(): Promise<void> }[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((one) => one.close()))
})

async function start(options: Pick<Parameters<typeof listen>[0], 'handler'>): Promise<HttpListener> {
  const listener = await listen({ address: '127.0.0.1:0', log, ...options })
  open.push(listener)
  return listener
}

describe('routing', () => {
  const handler = routeRequests(
    {
      '/exact': ({ response }) => replyText(response, 200, 'exact'),
      '/tree/': ({ path, response }) => replyText(response, 200, path),
      '/tree/leaf': ({ response }) => replyText(response, 200, 'leaf'),
      '/query': ({ query, response }) => replyText(response, 200, `${query.get('a')}|${query.has('b')}`),
      '/throws': () => {
        throw new Error('broken')
      },
      '/rejects': async ({ response }) => {
        response.write('half')
        throw new Error('broken')
      },
      '/short': async ({ request, response }) => replyText(response, 200, String(await readBody(request, 8))),
    },
    log,
  )

  it('matches exact paths, trees and queries', async () => {
    const { port } = await start({ handler })
    const body = async (path: string) => (await ask(`127.0.0.1:${port}${path}`)).body
    expect(await body('/exact')).toBe('exact')
    expect(await body('/exact?x')).toBe('exact')
    expect(await body('/tree/any/thing')).toBe('/tree/any/thing')
    expect(await body('/tree/leaf')).toBe('leaf')
    expect(await body('/query?a=1%20x&b')).toBe('1 x|true')
    expect(await sendRaw(port, 'GET http://elsewhere/exact HTTP/1.0\r\n\r\n')).toMatch(/\r\n\r\nexact$/)
  })

  it('answers 404 to the rest, prototype members included', async () => {
    const { port } = await start({ handler })
    for (const path of ['/', '/exact/', '/tree', '/constructor', '/__proto__', 'toString', '//exact']) {
      const answer = await ask(`127.0.0.1:${port}${path.startsWith('/') ? path : `/${path}`}`)
      expect(answer, path).toMatchObject({ status: 404, body: '404 page not found\n' })
      expect(answer.headers['content-type']).toBe('text/plain; charset=utf-8')
    }
    expect((await ask(`127.0.0.1:${port}/%ff`)).status).toBe(400)
  })

  it('survives routes that throw', async () => {
    const { port } = await start({ handler })
    expect(await ask(`127.0.0.1:${port}/throws`)).toMatchObject({ status: 500 })
    await expect(ask(`127.0.0.1:${port}/rejects`)).rejects.toThrow()
    expect((await ask(`127.0.0.1:${port}/exact`)).status).toBe(200)
  })

  it('survives handlers that throw', async () => {
    const { port } = await start({
      handler: () => {
        throw new Error('broken')
      },
    })
    await expect(ask(`127.0.0.1:${port}/`)).rejects.toThrow()
    await expect(ask(`127.0.0.1:${port}/`)).rejects.toThrow()
  })

  it('reads short bodies and refuses long ones without dropping the answer', async () => {
    const { port } = await start({ handler })
    expect((await ask(`127.0.0.1:${port}/short`, { method: 'PUT', body: '12345678' })).body).toBe('12345678')
    expect((await ask(`127.0.0.1:${port}/short`, { method: 'PUT', body: '123456789' })).body).toBe('undefined')
  })
})
