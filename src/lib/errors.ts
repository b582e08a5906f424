// The error type that users see: a stable code, a sentence to act on, and the cause underneath.
// Subclasses live beside the code that throws them and carry what control flow reads: ExecError, NetlinkError, ApiError, EncodeError.

/** Every code there is. A new code is a new line here, so that a misspelt comparison does not compile. */
export type ErrorCode =
  | 'address'
  | 'admin'
  | 'already-exists'
  | 'bad-request'
  | 'bad-response'
  | 'base-refused'
  | 'closed'
  | 'config'
  | 'config-changed'
  | 'conflict'
  | 'connection'
  | 'credentials'
  | 'demo'
  | 'exec'
  | 'expired'
  | 'forbidden'
  | 'invalid'
  | 'ipset'
  | 'iptables-cleanup'
  | 'iptables-locked'
  | 'iptables-missing'
  | 'iptables-refused'
  | 'iptables-restore'
  | 'iptables-unusable'
  | 'ipvs-cleanup'
  | 'ipvs-missing'
  | 'ipvs-scheduler'
  | 'line-too-long'
  | 'listen'
  | 'malformed-event'
  | 'manifests'
  | 'method-not-allowed'
  | 'migrate'
  | 'mode'
  | 'netlink'
  | 'netsh'
  | 'nftables'
  | 'nftables-encode'
  | 'nftables-owned'
  | 'no-interface'
  | 'no-proxy'
  | 'no-proxy-port'
  | 'node'
  | 'not-found'
  | 'plan'
  | 'proxy'
  | 'question'
  | 'refused'
  | 'relay'
  | 'resource-version-too-large'
  | 'root'
  | 'sctp'
  | 'server-error'
  | 'several'
  | 'stalled'
  | 'storage'
  | 'sync'
  | 'sysctl'
  | 'taken'
  | 'timeout'
  | 'tls'
  | 'too-many-requests'
  | 'unauthorized'
  | 'unavailable'
  | 'usage'
  | 'watch-list-ignored'

export interface ErrorDetail {
  readonly cause?: unknown
  /** What the error is about: an object, a field, an errno. Printed as key=value in logs. */
  readonly fields?: Readonly<Record<string, unknown>>
}

export class ProxyError extends Error {
  readonly code: ErrorCode
  readonly fields: Readonly<Record<string, unknown>>

  constructor(code: ErrorCode, message: string, detail: ErrorDetail = {}) {
    super(message, detail.cause === undefined ? undefined : { cause: detail.cause })
    this.name = 'ProxyError'
    this.code = code
    this.fields = detail.fields ?? {}
  }
}

/** How the API server, or something on the way to it, refused a request. */
export interface ApiAnswerFields {
  /** HTTP status, or the `code` of a Status object. */
  readonly status: number
  readonly reason: string
  readonly retryAfterMs?: number
  /** The causes of a Status object, field by field. */
  readonly causes?: readonly unknown[]
}

export class ApiError extends ProxyError {
  readonly status: number
  readonly retryAfterMs: number | undefined

  constructor(code: ErrorCode, message: string, fields: ApiAnswerFields) {
    super(code, message, { fields: { ...fields } })
    this.status = fields.status
    this.retryAfterMs = fields.retryAfterMs
  }
}

/** One line for a person: the message, then the messages of the causes that add something. */
export function describeError(error: unknown): string {
  const parts: string[] = []
  for (let at: unknown = error, depth = 0; at !== undefined && at !== null && depth < 8; depth++) {
    const text = at instanceof Error ? at.message : String(at)
    if (text !== '' && !parts.some((part) => part.includes(text))) parts.push(text)
    at = at instanceof Error ? at.cause : undefined
  }
  return parts.join(': ')
}
