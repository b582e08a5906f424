// What the API server and the network say when they refuse, as errors with stable codes.

import { ApiError, type ErrorCode, ProxyError } from '../lib/errors.ts'
import { asObject, type JsonObject } from './reflect/fields.ts'

const codes: Readonly<Record<number, ErrorCode>> = {
  400: 'bad-request',
  401: 'unauthorized',
  403: 'forbidden',
  404: 'not-found',
  405: 'method-not-allowed',
  409: 'conflict',
  410: 'expired',
  422: 'invalid',
  429: 'too-many-requests',
  503: 'unavailable',
  504: 'timeout',
}

export interface ApiFailure {
  readonly status: number
  /** The body, or the object of an ERROR event; a Status if it came from the API server. */
  readonly body: unknown
  /** `GET https://…`. */
  readonly what: string
  readonly retryAfterMs?: number | undefined
}

export function statusError(refusal: ApiFailure): ApiError {
  const body = asObject(refusal.body) ?? {}
  const details = asObject(body.details) ?? {}
  const reason = typeof body.reason === 'string' ? body.reason : ''
  const status = refusal.status || (typeof body.code === 'number' ? body.code : 500)
  const said = typeof body.message === 'string' ? body.message : excerpt(refusal.body)
  const seconds = typeof details.retryAfterSeconds === 'number' ? details.retryAfterSeconds : 0
  const retryAfterMs = refusal.retryAfterMs ?? (seconds > 0 ? seconds * 1000 : undefined)
  const message = `${refusal.what}: ${status}${said === '' ? '' : ` ${said}`}`
  return new ApiError(codeOf(status, reason, body, details), message, {
    status,
    reason,
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  })
}

function codeOf(status: number, reason: string, body: JsonObject, details: JsonObject): ErrorCode {
  const causes = Array.isArray(details.causes) ? details.causes : []
  // Servers before 1.18 say it only in the message.
  const tooLarge =
    causes.some((cause) => asObject(cause)?.reason === 'ResourceVersionTooLarge') ||
    (typeof body.message === 'string' && body.message.includes('Too large resource version'))
  if (tooLarge) return 'resource-version-too-large'
  if (reason === 'Expired' || reason === 'Gone') return 'expired'
  if (reason === 'AlreadyExists') return 'already-exists'
  return codes[status] ?? (status >= 500 ? 'server-error' : 'bad-response')
}

function excerpt(body: unknown): string {
  const text = typeof body === 'string' ? body : body === undefined ? '' : JSON.stringify(body)
  return text.length <= 200 ? text.trim() : `${text.slice(0, 197)}...`
}

/** `Retry-After` in seconds, the only form the API server uses. */
export function readRetryAfter(header: string | undefined): number | undefined {
  return header !== undefined && /^\d{1,6}$/.test(header) ? Number(header) * 1000 : undefined
}

/** A failure below HTTP: code `tls` if certificates are the reason, else `connection`. */
export function networkError(what: string, error: unknown): ProxyError {
  if (error instanceof ProxyError) return error
  const code = String((error as NodeJS.ErrnoException | undefined)?.code ?? '')
  const said = error instanceof Error && error.message !== '' ? error.message : code
  // Node's word for a body that ends too early; it explains nothing further.
  const broke = said === 'aborted'
  const why = broke ? 'the connection broke off' : said
  const tls = /^(CERT_|ERR_TLS_|ERR_SSL_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|HOSTNAME_MISMATCH|EPROTO|ERR_OSSL)/.test(
    code,
  )
  return new ProxyError(tls ? 'tls' : 'connection', `${what}: ${why}`, {
    cause: broke ? undefined : error,
    fields: { errno: code },
  })
}
