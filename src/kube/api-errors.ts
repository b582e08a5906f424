// Turns refusals of the API server and failures of the network into errors with stable codes. Pure.

import { cutText, excerptJson } from '../lib/bounded-json.ts'
import { ApiError, type ErrorCode, ProxyError, readSystemCode } from '../lib/errors.ts'
import { asObject, type JsonObject, readString } from './decode/fields.ts'

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
  /** The body, or the object of an ERROR event. A Status if the API server itself sent it. */
  readonly body: unknown
  /** The request, such as `GET https://…`. */
  readonly what: string
  readonly retryAfterMs?: number | undefined
}

/** An object has few wrong fields; a hostile answer may name many. */
const maxCauses = 100

export function makeStatusError(failure: ApiFailure): ApiError {
  const body = asObject(failure.body) ?? {}
  const details = asObject(body.details) ?? {}
  const reason = cutText(readString(body, 'reason'), 100)
  const status = failure.status || (typeof body.code === 'number' ? body.code : 500)
  const explanation = typeof body.message === 'string' ? cutText(body.message, 1_000) : shorten(failure.body)
  const seconds = typeof details.retryAfterSeconds === 'number' ? details.retryAfterSeconds : 0
  const retryAfterMs = failure.retryAfterMs ?? (seconds > 0 ? seconds * 1000 : undefined)
  const message = `${failure.what}: ${status}${explanation === '' ? '' : ` ${explanation}`}`
  return new ApiError(chooseCode(status, reason, body, details), message, {
    status,
    reason,
    explanation,
    causes: Array.isArray(details.causes) ? details.causes.slice(0, maxCauses) : [],
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  })
}

function chooseCode(status: number, reason: string, body: JsonObject, details: JsonObject): ErrorCode {
  const causes = Array.isArray(details.causes) ? details.causes : []
  // Servers before 1.18 name this reason only in the message.
  const isTooLarge =
    causes.some((cause) => asObject(cause)?.reason === 'ResourceVersionTooLarge') ||
    readString(body, 'message').includes('Too large resource version')
  if (isTooLarge) return 'resource-version-too-large'
  if (reason === 'Expired' || reason === 'Gone') return 'expired'
  if (reason === 'AlreadyExists') return 'already-exists'
  return codes[status] ?? (status >= 500 ? 'server-error' : 'bad-response')
}

function shorten(body: unknown): string {
  if (body === undefined) return ''
  return typeof body === 'string' ? cutText(body, 200).trim() : excerptJson(body, 200)
}

/** Returns the milliseconds of a `Retry-After` header in seconds, the only form that the API server uses. */
export function readRetryAfter(header: string | undefined): number | undefined {
  return header !== undefined && /^\d{1,6}$/.test(header) ? Number(header) * 1000 : undefined
}

/** Returns an error for a failure below HTTP, with code `tls` if certificates are the reason, else `connection`. */
export function makeNetworkError(what: string, error: unknown): ProxyError {
  if (error instanceof ProxyError) return error
  const code = readSystemCode(error)
  const text = error instanceof Error && error.message !== '' ? error.message : code
  // Node reports a body that ends too early only as "aborted".
  const isBroken = text === 'aborted'
  const explanation = isBroken ? 'the connection broke off' : text
  const isTls = /^(CERT_|ERR_TLS_|ERR_SSL_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|HOSTNAME_MISMATCH|EPROTO|ERR_OSSL)/.test(
    code,
  )
  return new ProxyError(isTls ? 'tls' : 'connection', `${what}: ${explanation}`, {
    cause: isBroken ? undefined : error,
    fields: { errno: code },
  })
}
