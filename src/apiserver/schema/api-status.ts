// Refusals as the Kubernetes API words them: a Status object with reason, code and causes.

import type { Json } from './json.ts'

export interface Cause {
  readonly reason: string
  readonly message: string
  readonly field: string
}

/** Which kind of object a refusal speaks of: `services` or `endpointslices.discovery.k8s.io`. */
export interface Subject {
  readonly group: string
  /** Plural for what is about storage, the kind for what is about content. */
  readonly kind: string
  readonly name?: string
}

export interface StatusRefusal {
  readonly code: number
  readonly reason: string
  readonly message: string
  readonly details?: Json
  readonly headers?: Readonly<Record<string, string>>
}

/** Thrown by whatever answers a request; becomes the answer. */
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

const detailsOf = ({ group, kind, name }: Subject, more: Json = {}): Json => ({
  ...(name === undefined || name === '' ? {} : { name }),
  ...(group === '' ? {} : { group }),
  kind,
  ...more,
})

const qualified = ({ group, kind }: Subject): string => (group === '' ? kind : `${kind}.${group}`)

export const badRequest = (message: string): StatusError =>
  new StatusError({ code: 400, reason: 'BadRequest', message })

export const unauthorized = (): StatusError =>
  new StatusError({ code: 401, reason: 'Unauthorized', message: 'Unauthorized' })

export const forbidden = (subject: Subject, why: string): StatusError =>
  new StatusError({
    code: 403,
    reason: 'Forbidden',
    message: `${qualified(subject)} "${subject.name ?? ''}" is forbidden: ${why}`,
    details: detailsOf(subject),
  })

export const notFound = (subject: Subject): StatusError =>
  new StatusError({
    code: 404,
    reason: 'NotFound',
    message: `${qualified(subject)} "${subject.name ?? ''}" not found`,
    details: detailsOf(subject),
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

export const alreadyExists = (subject: Subject): StatusError =>
  new StatusError({
    code: 409,
    reason: 'AlreadyExists',
    message: `${qualified(subject)} "${subject.name ?? ''}" already exists`,
    details: detailsOf(subject),
  })

export const conflict = (subject: Subject, why: string): StatusError =>
  new StatusError({
    code: 409,
    reason: 'Conflict',
    message: `Operation cannot be fulfilled on ${qualified(subject)} "${subject.name ?? ''}": ${why}`,
    details: detailsOf(subject),
  })

export const modified = (subject: Subject): StatusError =>
  conflict(subject, 'the object has been modified; please apply your changes to the latest version and try again')

export const expired = (message: string, metadata?: Json): StatusError =>
  new StatusError({ code: 410, reason: 'Expired', message, ...(metadata === undefined ? {} : { details: metadata }) })

export const tooLarge = (limit: number): StatusError =>
  new StatusError({
    code: 413,
    reason: 'RequestEntityTooLarge',
    message: `Request entity too large: limit is ${limit}`,
  })

export const unsupportedMedia = (accepted: readonly string[]): StatusError =>
  new StatusError({
    code: 415,
    reason: 'UnsupportedMediaType',
    message: `the body of the request was in an unknown format - accepted media types include: ${accepted.join(', ')}`,
  })

export const notAcceptable = (accepted: readonly string[]): StatusError =>
  new StatusError({
    code: 406,
    reason: 'NotAcceptable',
    message: `only the following media types are accepted: ${accepted.join(', ')}`,
  })

export function invalid(subject: Subject, causes: readonly Cause[]): StatusError {
  const told = causes.map(({ field, message }) => (field === '' ? message : `${field}: ${message}`))
  const list = told.length === 1 ? told[0] : `[${told.join(', ')}]`
  return new StatusError({
    code: 422,
    reason: 'Invalid',
    message: `${qualified(subject)} "${subject.name ?? ''}" is invalid: ${list}`,
    details: detailsOf(subject, { causes }),
  })
}

/** A patch that cannot be carried out. */
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

export const versionTooLarge = (asked: number, current: number): StatusError =>
  new StatusError({
    code: 504,
    reason: 'Timeout',
    message: `Timeout: Too large resource version: ${asked}, current: ${current}`,
    details: {
      causes: [{ reason: 'ResourceVersionTooLarge', message: 'Too large resource version' }],
      retryAfterSeconds: 1,
    },
    headers: { 'Retry-After': '1' },
  })
