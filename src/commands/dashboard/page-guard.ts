// Decides which requests the dashboard answers: the Host and the Origin must be ours, and a cookie must prove that the browser once had
// the printed URL. Pure.

import { createHash, timingSafeEqual } from 'node:crypto'
import { isTrustedHost } from '../../lib/host-header.ts'

/** What a request says about itself. */
export interface RequestFacts {
  readonly method: string
  readonly path: string
  readonly query: URLSearchParams
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
}

export interface Secrets {
  /** In the printed URL. */
  readonly token: string
  /** In the cookie: another secret, so that neither is found by the other. */
  readonly session: string
  /** Ports of one host share their cookies, so each dashboard has a name of its own. */
  readonly cookie: string
}

export type Decision =
  | { readonly kind: 'answer' }
  /** The URL has the token: the browser gets the cookie, and goes to the same place without the token. */
  | { readonly kind: 'admit'; readonly location: string; readonly cookie: string }
  | { readonly kind: 'refuse'; readonly status: 400 | 401 | 403 | 405 | 421; readonly why: string }

const refuse = (status: 401 | 403 | 405 | 421, why: string): Decision => ({ kind: 'refuse', status, why })

export function judgeRequest(request: RequestFacts, secrets: Secrets, hosts: ReadonlySet<string>): Decision {
  const { method, path, query, headers } = request
  const host = headers.host
  // A page of another name that points to this address (DNS rebinding) sends that name. Every browser sends a Host.
  if (typeof host !== 'string' || !isTrustedHost(host, hosts)) {
    return refuse(421, 'the Host header must be an IP address, localhost, or a name that --allow-host gives')
  }
  if (method !== 'GET' && method !== 'HEAD') return refuse(405, 'the dashboard only reads: only GET is allowed')
  const origin = headers.origin
  if (origin !== undefined && !isOwnOrigin(origin, host)) return refuse(403, 'another origin must not ask')
  const token = query.get('token')
  if (path === '/' && token !== null) return admit(token, secrets)
  const site = headers['sec-fetch-site']
  if (path !== '/' && site !== undefined && site !== 'same-origin' && site !== 'none') {
    return refuse(403, 'another site must not ask')
  }
  if (!hasCookie(headers.cookie, secrets)) {
    return refuse(401, 'this browser has not opened the URL that sluice printed, or the dashboard was started again')
  }
  return { kind: 'answer' }
}

/** TLS may end in a reverse proxy. */
const isOwnOrigin = (origin: string | string[], host: string): boolean =>
  origin === `http://${host}` || origin === `https://${host}`

function admit(token: string, { token: expected, session, cookie }: Secrets): Decision {
  if (!isEqual(token, expected)) return refuse(401, 'the token of this URL is not that of the running dashboard')
  return { kind: 'admit', location: '/', cookie: `${cookie}=${session}; Path=/; HttpOnly; SameSite=Strict` }
}

const hasCookie = (header: string | string[] | undefined, { cookie, session }: Secrets): boolean =>
  String(header ?? '')
    .split(/; */)
    .some((pair) => pair.startsWith(`${cookie}=`) && isEqual(pair.slice(cookie.length + 1), session))

/** Compares in a time that does not depend on where the two differ. */
function isEqual(given: string, expected: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest()
  return timingSafeEqual(digest(given), digest(expected))
}

/** Sent with every answer. The page needs no script, style or image but its own files, and asks only this server. */
export const safeHeaders: Readonly<Record<string, string>> = {
  'Content-Security-Policy': [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; '),
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
}
