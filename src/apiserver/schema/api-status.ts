// The failures that the API answers with: Status objects with the codes, reasons, messages and causes of the real kube-apiserver. Pure.

import type { Json } from './json.ts'

/** Reasons of a Status as Kubernetes defines them, as far as this server uses them. */
export type StatusReason =
  | ''
  | 'AlreadyExists'
  | 'BadRequest'
  | 'Conflict'
  | 'Expired'
  | 'Forbidden'
  | 'InternalError'
  | 'Invalid'
  | 'MethodNotAllowed'
  | 'NotAcceptable'
  | 'NotFound'
  | 'RequestEntityTooLarge'
  | 'Timeout'
  | 'Unauthorized'
  | 'UnsupportedMediaType'

export type CauseReason =
  | 'FieldManagerConflict'
  | 'FieldValueDuplicate'
  | 'FieldValueForbidden'
  | 'FieldValueInvalid'
  | 'FieldValueNotSupported'
  | 'FieldValueRequired'
  | 'FieldValueTooLong'
  | 'FieldValueTooMany'
  | 'ResourceVersionTooLarge'

export interface StatusCause {
  readonly reason?: CauseReason
  readonly message: string
  readonly field?: string
}

export interface StatusDetails {
  readonly name?: string
  readonly group?: string
  readonly kind?: string
  readonly causes?: readonly StatusCause[]
  readonly retryAfterSeconds?: number
  /** The token for the next page, after the version of the list has expired. */
  readonly continue?: string
}

/** The object that a Status is about: `services` or `endpointslices.discovery.k8s.io`. */
export interface StatusSubject {
  readonly group: string
  /** The plural if the failure is about storage, the kind if it is about content. */
  readonly kind: string
  readonly name?: string
}

export interface StatusRefusal {
  readonly code: number
  readonly reason: StatusReason
  readonly message: string
  readonly details?: StatusDetails
  readonly headers?: Readonly<Record<string, string>>
}

/** Thrown while a request is answered; the router turns it into the response. */
export class StatusError extends Error {
  readonly refusal: StatusRefusal

  constructor(refusal: StatusRefusal) {
    super(refusal.message)
    this.name = 'StatusError'
    this.refusal = refusal
  }
}

export function statusObject({ code, reason, message, details }: StatusRefusal): Json {
  return {
    kind: 'Status',
    apiVersion: 'v1',
    metadata: {},
    status: 'Failure',
    message,
    ...(reason === '' ? {} : { reason }),
    ...(details === undefined ? {} : { details }),
    code,
  }
}

export const subjectDetails = ({ group, kind, name }: StatusSubject): StatusDetails => ({
  ...(name === undefined || name === '' ? {} : { name }),
  ...(group === '' ? {} : { group }),
  kind,
})

const describeSubject = ({ group, kind, name }: StatusSubject): string =>
  `${group === '' ? kind : `${kind}.${group}`} "${name ?? ''}"`

export const badRequest = (message: string): StatusError =>
  new StatusError({ code: 400, reason: 'BadRequest', message })

export const unauthorized = (): StatusError =>
  new StatusError({ code: 401, reason: 'Unauthorized', message: 'Unauthorized' })

export const forbidden = (subject: StatusSubject, why: string): StatusError =>
  new StatusError({
    code: 403,
    reason: 'Forbidden',
    message: `${describeSubject(subject)} is forbidden: ${why}`,
    details: subjectDetails(subject),
  })

export const notFound = (subject: StatusSubject): StatusError =>
  new StatusError({
    code: 404,
    reason: 'NotFound',
    message: `${describeSubject(subject)} not found`,
    details: subjectDetails(subject),
  })

export const unknownResource = (): StatusError =>
  new StatusError({
    code: 404,
    reason: 'NotFound',
    message: 'the server could not find the requested resource',
    details: {},
  })

export const methodNotAllowed = (): StatusError =>
  new StatusError({
    code: 405,
    reason: 'MethodNotAllowed',
    message: 'the server does not allow this method on the requested resource',
    details: {},
  })

export const notAcceptable = (accepted: readonly string[]): StatusError =>
  new StatusError({
    code: 406,
    reason: 'NotAcceptable',
    message: `only the following media types are accepted: ${accepted.join(', ')}`,
  })

export const alreadyExists = (subject: StatusSubject): StatusError =>
  new StatusError({
    code: 409,
    reason: 'AlreadyExists',
    message: `${describeSubject(subject)} already exists`,
    details: subjectDetails(subject),
  })

export const conflict = (subject: StatusSubject, why: string): StatusError =>
  new StatusError({
    code: 409,
    reason: 'Conflict',
    message: `Operation cannot be fulfilled on ${describeSubject(subject)}: ${why}`,
    details: subjectDetails(subject),
  })

export const modified = (subject: StatusSubject): StatusError =>
  conflict(subject, 'the object has been modified; please apply your changes to the latest version and try again')

export const expired = (message: string, details?: StatusDetails): StatusError =>
  new StatusError({ code: 410, reason: 'Expired', message, ...(details === undefined ? {} : { details }) })

/** The answer to a page in a browser that was tricked into asking this server. */
export const misdirected = (): StatusError =>
  new StatusError({
    code: 421,
    reason: 'Forbidden',
    message: 'requests with an Origin, or with a Host that is neither an IP address nor localhost, are refused',
  })

export const tooLarge = (limit: number): StatusError =>
  new StatusError({
    code: 413,
    reason: 'RequestEntityTooLarge',
    message: `Request entity too large: limit is ${limit}`,
  })

export const tooManyOperations = (limit: number, given: number): StatusError =>
  new StatusError({
    code: 413,
    reason: 'RequestEntityTooLarge',
    message: `Request entity too large: The allowed maximum operations in a JSON patch is ${limit}, got ${given}`,
  })

export const unsupportedMedia = (accepted: readonly string[]): StatusError =>
  new StatusError({
    code: 415,
    reason: 'UnsupportedMediaType',
    message: `the body of the request was in an unknown format - accepted media types include: ${accepted.join(', ')}`,
  })

export function invalid(subject: StatusSubject, causes: readonly StatusCause[]): StatusError {
  const messages = causes.map(({ field = '', message }) => (field === '' ? message : `${field}: ${message}`))
  const list = messages.length === 1 ? messages[0] : `[${messages.join(', ')}]`
  return new StatusError({
    code: 422,
    reason: 'Invalid',
    message: `${describeSubject(subject)} is invalid: ${list}`,
    details: { ...subjectDetails(subject), causes },
  })
}

/** A well-formed patch that does not fit the object. */
export const unprocessable = (why: string): StatusError =>
  new StatusError({
    code: 422,
    reason: 'Invalid',
    message: 'the server rejected our request due to an error in our request',
    details: { causes: [{ reason: 'FieldValueInvalid', message: why, field: 'patch' }] },
  })

export const internal = (why: string): StatusError =>
  new StatusError({
    code: 500,
    reason: 'InternalError',
    message: `Internal error occurred: ${why}`,
    details: { causes: [{ message: why }] },
  })

/** A failure for which the real server has no reason. */
export const unclassified = (message: string): StatusError => new StatusError({ code: 500, reason: '', message })

/** Refuses a version whose changes are no longer kept. */
export const versionExpired = (asked: number, oldest: number): StatusError =>
  expired(`too old resource version: ${asked} (${oldest})`)

/** Refuses a version that this server has not reached yet. Only the response to a list has a Retry-After header. */
export const versionTooLarge = (
  asked: number,
  current: number,
  headers: Readonly<Record<string, string>> = {},
): StatusError =>
  new StatusError({
    code: 504,
    reason: 'Timeout',
    message: `Timeout: Too large resource version: ${asked}, current: ${current}`,
    details: {
      causes: [{ reason: 'ResourceVersionTooLarge', message: 'Too large resource version' }],
      retryAfterSeconds: 1,
    },
    headers,
  })
