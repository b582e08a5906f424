import { describe, expect, it } from 'vitest'
import { judgeRequest, type RequestFacts, safeHeaders } from '../../../src/commands/dashboard/page-guard.ts'

const secrets = { token: 'right-token', session: 'right-session', cookie: 'sluice-7777' }
const cookie = 'sluice-7777=right-session'

function judge(change: Partial<RequestFacts> & { hosts?: readonly string[]; words?: string } = {}) {
  const { hosts = [], words = '', ...rest } = change
  const facts = {
    method: 'GET',
    path: '/api/services',
    query: new URLSearchParams(words),
    headers: { host: '127.0.0.1:7777', cookie },
    ...rest,
  }
  return judgeRequest(facts, secrets, new Set(hosts))
}

const refusal = (status: number) => expect.objectContaining({ kind: 'refuse', status })

describe('the guard of the dashboard', () => {
  it('answers a browser with the cookie', () => {
    expect(judge()).toEqual({ kind: 'answer' })
    expect(judge({ headers: { host: 'localhost:7777', cookie: `other=1; ${cookie}` } })).toEqual({ kind: 'answer' })
    expect(judge({ headers: { host: '[::1]:7777', cookie } })).toEqual({ kind: 'answer' })
  })

  it('turns the token of the URL into a cookie that scripts and other sites cannot use', () => {
    expect(judge({ path: '/', words: 'token=right-token', headers: { host: '127.0.0.1:7777' } })).toEqual({
      kind: 'admit',
      location: '/',
      cookie: 'sluice-7777=right-session; Path=/; HttpOnly; SameSite=Strict',
    })
  })

  it('refuses a wrong token, and a token for anything but the document', () => {
    const headers = { host: '127.0.0.1:7777' }
    expect(judge({ path: '/', words: 'token=wrong', headers })).toEqual(refusal(401))
    expect(judge({ path: '/', words: 'token=', headers })).toEqual(refusal(401))
    expect(judge({ words: 'token=right-token', headers })).toEqual(refusal(401))
  })

  it('refuses without a cookie, and with the cookie of another dashboard or another value', () => {
    for (const given of [
      undefined,
      '',
      'sluice-7777=',
      'sluice-7777=right-sessionx',
      'sluice-1=right-session',
      'right-session',
    ]) {
      expect(judge({ headers: { host: '127.0.0.1:7777', cookie: given } }), String(given)).toEqual(refusal(401))
    }
  })

  it('refuses names that others may point here, before anything else (DNS rebinding)', () => {
    for (const host of ['evil.example', 'evil.example:7777', '127.0.0.1.evil.example', '', undefined]) {
      expect(judge({ headers: { host, cookie } }), String(host)).toEqual(refusal(421))
      expect(judge({ path: '/', words: 'token=right-token', headers: { host } }), String(host)).toEqual(refusal(421))
    }
    expect(judge({ headers: { host: 'board.example:7777', cookie }, hosts: ['board.example'] })).toEqual({
      kind: 'answer',
    })
  })

  it('refuses other origins and other sites', () => {
    const host = '127.0.0.1:7777'
    expect(judge({ headers: { host, cookie, origin: 'http://evil.example' } })).toEqual(refusal(403))
    expect(judge({ headers: { host, cookie, origin: 'null' } })).toEqual(refusal(403))
    expect(judge({ headers: { host, cookie, origin: 'http://127.0.0.1:8888' } })).toEqual(refusal(403))
    expect(judge({ headers: { host, cookie, 'sec-fetch-site': 'cross-site' } })).toEqual(refusal(403))
    expect(judge({ headers: { host, cookie, 'sec-fetch-site': 'same-site' } })).toEqual(refusal(403))
    expect(judge({ headers: { host, cookie, origin: `http://${host}`, 'sec-fetch-site': 'same-origin' } })).toEqual({
      kind: 'answer',
    })
  })

  it('only reads', () => {
    for (const method of ['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']) expect(judge({ method })).toEqual(refusal(405))
  })

  it('allows the page nothing but its own files', () => {
    const policy = safeHeaders['Content-Security-Policy'] ?? ''
    expect(policy).toContain("default-src 'none'")
    expect(policy).toContain("frame-ancestors 'none'")
    expect(policy).not.toMatch(/unsafe|https?:|\*|data:/)
  })
})
