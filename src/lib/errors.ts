// The error type that users see: a stable code, a sentence that says what to do, and the cause. Subclasses with the fields that control
// flow reads are beside the code that throws them: ExecError, NetlinkError, EncodeError. Pure.

import type { constants } from 'node:os'

/** What the user asked for: flags, files, modes. */
type RequestCode = 'config' | 'config-changed' | 'mode' | 'usage'

/** Answers of the API server. */
type ApiAnswerCode =
  | 'already-exists'
  | 'answer-too-large'
  | 'bad-request'
  | 'bad-response'
  | 'conflict'
  | 'expired'
  | 'forbidden'
  | 'invalid'
  | 'method-not-allowed'
  | 'not-found'
  | 'resource-version-too-large'
  | 'server-error'
  | 'too-many-requests'
  | 'unauthorized'
  | 'unavailable'

/** The connection to the API server, and what it streams. */
type ApiConnectionCode =
  | 'closed'
  | 'connection'
  | 'credentials'
  | 'line-too-long'
  | 'malformed-event'
  | 'stalled'
  | 'timeout'
  | 'tls'
  | 'unexpected'
  | 'watch-list-ignored'

/** The kernel and the programs that change it. */
type SystemCode = 'address' | 'exec' | 'foreign' | 'native-code' | 'netlink' | 'netsh' | 'no-interface' | 'sysctl'

/** The data planes of the modes. */
type DataPlaneCode =
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
  | 'nftables'
  | 'nftables-encode'
  | 'nftables-owned'
  | 'no-proxy-port'
  | 'refused'
  | 'relay'
  | 'sctp'

/** The engine and the daemon. */
type DaemonCode = 'admin' | 'base-refused' | 'limit' | 'listen' | 'node' | 'plan' | 'sync'

/** The commands of `sluice`, and the API server of `sluice up`. */
type CommandCode =
  | 'demo'
  | 'manifests'
  | 'migrate'
  | 'no-proxy'
  | 'proxy'
  | 'question'
  | 'root'
  | 'several'
  | 'storage'
  | 'taken'

/** All codes. A new code is a new line above, so that a misspelt comparison does not compile. */
export type ErrorCode =
  | RequestCode
  | ApiAnswerCode
  | ApiConnectionCode
  | SystemCode
  | DataPlaneCode
  | DaemonCode
  | CommandCode

export interface ErrorDetail {
  readonly cause?: unknown
  /** What the error is about: an object, a field, an errno. Logs print them as key=value. */
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

/** How the API server, or a proxy on the way to it, refused a request. */
export interface ApiAnswerFields {
  /** HTTP status, or the `code` of a Status object. */
  readonly status: number
  readonly reason: string
  /** The message of the API server itself, without the request. */
  readonly explanation?: string
  readonly retryAfterMs?: number
  /** The causes of a Status object, field by field. */
  readonly causes?: readonly unknown[]
}

export class ApiError extends ProxyError {
  readonly answer: ApiAnswerFields
  readonly status: number
  readonly retryAfterMs: number | undefined

  constructor(code: ErrorCode, message: string, fields: ApiAnswerFields) {
    // The message has the explanation already.
    const { explanation: _, causes: __, ...logged } = fields
    super(code, message, { fields: logged })
    this.answer = fields
    this.status = fields.status
    this.retryAfterMs = fields.retryAfterMs
  }
}

/** Returns one line: the message, then the messages of the causes that add something. */
export function describeError(error: unknown): string {
  const parts: string[] = []
  for (let at: unknown = error, depth = 0; at !== undefined && at !== null && depth < 8; depth++) {
    const text = at instanceof Error ? at.message : String(at)
    if (text !== '' && !parts.some((part) => part.includes(text))) parts.push(text)
    at = at instanceof Error ? at.cause : undefined
  }
  return parts.join(': ')
}

/** The name of an error number of the system: a misspelt name does not compile. */
export type Errno = keyof typeof constants.errno

/** Returns the errno of a Node error by name, such as ENOENT; undefined if the error has another code or none. */
export function readErrno(error: unknown): Errno | undefined {
  const code = readSystemCode(error)
  // Node takes these names from the same table; its other codes are longer words with underscores.
  return /^E[A-Z0-9]+$/.test(code) ? (code as Errno) : undefined
}

/** True if a Node error has one of these errnos. */
export function hasErrno(error: unknown, ...names: readonly Errno[]): boolean {
  const errno = readErrno(error)
  return errno !== undefined && names.includes(errno)
}

/** Returns the code of a Node error, such as ENOENT or ERR_TLS_HANDSHAKE_TIMEOUT, or ''. */
export const readSystemCode = (error: unknown): string =>
  error instanceof Error && 'code' in error ? String(error.code ?? '') : ''
