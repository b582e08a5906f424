// Reads the body of a request in its three forms (JSON, YAML, protobuf), and the options of writes and deletes. Pure.

import { describeError } from '../../lib/errors.ts'
import { decodeProtobuf } from '../protobuf/decode-protobuf.ts'
import { hasProtobufForm, protobufType } from '../protobuf/protobuf-fields.ts'
import type { FieldValidation } from '../requests/admission.ts'
import { parseInteger } from '../requests/list-options.ts'
import { patchTypes } from '../requests/patch-types.ts'
import type { DeleteOptions, Patch } from '../requests/writes.ts'
import { badRequest, unsupportedMedia } from '../schema/api-status.ts'
import { getList, getObject, isObject, parseJson } from '../schema/json.ts'
import { parseYaml } from '../schema/safe-yaml.ts'
import { listOf, type ObjectSchema, objectOf } from '../schema/schema.ts'
import type { ServedResource } from '../schema/served-resources.ts'
import { jsonType, type RequestBody } from './rest-messages.ts'

const mediaType = (contentType: string): string => (contentType.split(';')[0] ?? '').trim().toLowerCase()

export function readBody(request: RequestBody, { kind, schema }: Pick<ServedResource, 'kind' | 'schema'>): unknown {
  const type = mediaType(request.contentType)
  const accepted = [jsonType, 'application/yaml', ...(hasProtobufForm(schema) ? [protobufType] : [])]
  if (type !== '' && !accepted.includes(type)) throw unsupportedMedia(accepted)
  try {
    if (type === protobufType) return decodeProtobuf(request.body, schema)
    const source = request.body.toString('utf8')
    return type === 'application/yaml' ? parseYaml(source) : parseJson(source)
  } catch (error) {
    throw badRequest(
      `the object provided is unrecognized (must be of type ${kind}): couldn't get version/kind; json parse error: ${describeError(error)}`,
    )
  }
}

export function readPatch(request: RequestBody): Patch {
  const type = mediaType(request.contentType)
  if (!patchTypes.includes(type)) throw unsupportedMedia(patchTypes)
  try {
    const source = request.body.toString('utf8')
    return { type, body: type.endsWith('+yaml') ? parseYaml(source) : parseJson(source) }
  } catch (error) {
    throw badRequest(`error decoding patch: ${describeError(error)}`)
  }
}

export function parseDryRun(query: URLSearchParams): boolean {
  const value = query.get('dryRun')
  if (value === null || value === '') return false
  if (value !== 'All')
    throw badRequest(`invalid dryRun: Unsupported value: ${JSON.stringify(value)}: supported values: "All"`)
  return true
}

export function parseFieldValidation(query: URLSearchParams): FieldValidation {
  const value = query.get('fieldValidation') ?? ''
  if (value === '') return 'Warn'
  if (value === 'Ignore' || value === 'Warn' || value === 'Strict') return value
  throw badRequest(
    `fieldValidation: Unsupported value: ${JSON.stringify(value)}: supported values: "Ignore", "Strict", "Warn"`,
  )
}

const deleteOptionsSchema: ObjectSchema = objectOf('io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions', {
  gracePeriodSeconds: { type: 'integer' },
  propagationPolicy: { type: 'string' },
  dryRun: listOf({ type: 'string' }),
  preconditions: objectOf('io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions', {
    uid: { type: 'string' },
    resourceVersion: { type: 'string' },
  }),
})

/** The options are in the body, or in the query of older versions of kubectl. */
export function parseDeleteOptions(request: RequestBody): DeleteOptions {
  const body =
    request.body.length === 0 ? {} : readBody(request, { kind: 'DeleteOptions', schema: deleteOptionsSchema })
  if (!isObject(body)) throw badRequest('the object provided is unrecognized (must be of type DeleteOptions)')
  const preconditions = getObject(body, 'preconditions')
  return {
    graceSeconds: parseGrace(body.gracePeriodSeconds ?? parseInteger(request.query, 'gracePeriodSeconds')),
    dryRun: getList(body, 'dryRun').includes('All') || parseDryRun(request.query),
    uid: optionalString(preconditions.uid),
    resourceVersion: optionalString(preconditions.resourceVersion),
  }
}

const optionalString = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

function parseGrace(seconds: unknown): number | undefined {
  if (seconds === undefined || seconds === null) return undefined
  if (typeof seconds !== 'number' || !Number.isSafeInteger(seconds) || seconds < 0) {
    throw badRequest('gracePeriodSeconds must be a whole number, and not negative')
  }
  return seconds
}
