// What a request carries: the body in its three forms, and the options of writes and deletes. Pure.

import { describeError } from '../../lib/errors.ts'
import type { FieldValidation } from '../requests/admission.ts'
import { whole } from '../requests/reads.ts'
import { type DeleteOptions, patchTypes } from '../requests/writes.ts'
import { badRequest, unsupportedMedia } from '../schema/api-status.ts'
import { child, isObject, parseJson } from '../schema/json.ts'
import { decodeProtobuf, isProtobufKnown, protobufType } from '../schema/protobuf.ts'
import { parseYaml } from '../schema/safe-yaml.ts'
import { listOf, type Shape, shape } from '../schema/schema.ts'
import type { ServedResource } from '../schema/served-resources.ts'

const json = 'application/json'

/** The part of a call that is read here. */
export interface RequestBody {
  readonly query: URLSearchParams
  readonly contentType: string
  readonly body: Buffer
}

export const mediaType = (contentType: string): string => (contentType.split(';')[0] ?? '').trim().toLowerCase()

export function readBody(call: RequestBody, { kind, shape }: Pick<ServedResource, 'kind' | 'shape'>): unknown {
  const type = mediaType(call.contentType)
  const accepted = [json, 'application/yaml', ...(isProtobufKnown(shape) ? [protobufType] : [])]
  if (type !== '' && !accepted.includes(type)) throw unsupportedMedia(accepted)
  try {
    if (type === protobufType) return decodeProtobuf(call.body, shape)
    const source = call.body.toString('utf8')
    return type === 'application/yaml' ? parseYaml(source) : parseJson(source)
  } catch (error) {
    throw badRequest(
      `the object provided is unrecognized (must be of type ${kind}): couldn't get version/kind; json parse error: ${describeError(error)}`,
    )
  }
}

export function readPatch(call: RequestBody): unknown {
  const type = mediaType(call.contentType)
  if (!patchTypes.includes(type)) throw unsupportedMedia(patchTypes)
  try {
    const source = call.body.toString('utf8')
    return type.endsWith('+yaml') ? parseYaml(source) : parseJson(source)
  } catch (error) {
    throw badRequest(`error decoding patch: ${describeError(error)}`)
  }
}

export function dryRun(query: URLSearchParams): boolean {
  const value = query.get('dryRun')
  if (value === null || value === '') return false
  if (value !== 'All')
    throw badRequest(`invalid dryRun: Unsupported value: ${JSON.stringify(value)}: supported values: "All"`)
  return true
}

export function fieldValidation(query: URLSearchParams): FieldValidation {
  const value = query.get('fieldValidation') ?? ''
  if (value === '') return 'Warn'
  if (value === 'Ignore' || value === 'Warn' || value === 'Strict') return value
  throw badRequest(
    `fieldValidation: Unsupported value: ${JSON.stringify(value)}: supported values: "Ignore", "Strict", "Warn"`,
  )
}

const deleteOptionsShape: Shape = shape('io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions', {
  gracePeriodSeconds: { type: 'integer' },
  propagationPolicy: { type: 'string' },
  dryRun: listOf({ type: 'string' }),
  preconditions: shape('io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions', {
    uid: { type: 'string' },
    resourceVersion: { type: 'string' },
  }),
})

/** From the body, or from the query as kubectl's older versions do. */
export function deleteOptions(call: RequestBody): DeleteOptions {
  const body = call.body.length === 0 ? {} : readBody(call, { kind: 'DeleteOptions', shape: deleteOptionsShape })
  if (!isObject(body)) throw badRequest('the object provided is unrecognized (must be of type DeleteOptions)')
  const preconditions = child(body, 'preconditions')
  const grace = body.gracePeriodSeconds ?? whole(call.query, 'gracePeriodSeconds')
  if (grace !== undefined && grace !== null && (!Number.isSafeInteger(grace) || (grace as number) < 0)) {
    throw badRequest('gracePeriodSeconds must be a whole number, and not negative')
  }
  const asked = Array.isArray(body.dryRun) ? body.dryRun.includes('All') : false
  return {
    dryRun: asked || dryRun(call.query),
    graceSeconds: (grace ?? undefined) as number | undefined,
    uid: typeof preconditions.uid === 'string' ? preconditions.uid : undefined,
    resourceVersion: typeof preconditions.resourceVersion === 'string' ? preconditions.resourceVersion : undefined,
  }
}
