// The one error type users see: a stable code, a sentence to act on, and the cause underneath.

export interface ErrorDetail {
  readonly cause?: unknown
  /** What the error is about: an object, a field, an errno. Printed as key=value in logs. */
  readonly fields?: Readonly<Record<string, unknown>>
}

export class ProxyError extends Error {
  readonly code: string
  readonly fields: Readonly<Record<string, unknown>>

  constructor(code: string, message: string, detail: ErrorDetail = {}) {
    super(message, detail.cause === undefined ? undefined : { cause: detail.cause })
    this.name = 'ProxyError'
    this.code = code
    this.fields = detail.fields ?? {}
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
