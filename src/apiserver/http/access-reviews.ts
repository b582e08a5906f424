// Answers access reviews: who am I, and what may I do? A client with the token may do everything that this server serves. Nothing is stored.

import { badRequest, invalid } from '../schema/api-status.ts'
import { getObject, getString, type Json } from '../schema/json.ts'
import { objectMeta } from '../schema/kinds.ts'
import { boolean, listOf, type ObjectSchema, objectOf, string } from '../schema/schema.ts'
import { resources, type ServedResource } from '../schema/served-resources.ts'
import { describeUnserved, unservedResources } from './unserved-resources.ts'
import { verbsOf } from './verbs.ts'

export interface ReviewResource
  extends Pick<ServedResource, 'group' | 'version' | 'plural' | 'singular' | 'kind' | 'namespaced' | 'schema'> {
  /** Returns the status. Throws a StatusError if the question is not complete. */
  readonly answer: (review: Json, isDocument: (path: string) => boolean) => Json
}

const authorization = (kind: string) => `io.k8s.api.authorization.v1.${kind}`
const authentication = (kind: string) => `io.k8s.api.authentication.v1.${kind}`

const user = { username: 'sluice-admin', groups: ['system:masters', 'system:authenticated'] }

function define(
  name: (kind: string) => string,
  kind: string,
  fields: ObjectSchema['fields'],
  answer: ReviewResource['answer'],
): ReviewResource {
  const singular = kind.toLowerCase()
  const group = `${name('').split('.')[3]}.k8s.io`
  const schema = objectOf(name(kind), { kind: string, apiVersion: string, metadata: objectMeta, ...fields })
  return { group, version: 'v1', plural: `${singular}s`, singular, kind, namespaced: false, schema, answer }
}

const accessSpec = objectOf(authorization('SelfSubjectAccessReviewSpec'), {
  resourceAttributes: objectOf(authorization('ResourceAttributes'), {
    namespace: string,
    verb: string,
    group: string,
    version: string,
    resource: string,
    subresource: string,
    name: string,
  }),
  nonResourceAttributes: objectOf(authorization('NonResourceAttributes'), { path: string, verb: string }),
})
const accessStatus = objectOf(authorization('SubjectAccessReviewStatus'), { allowed: boolean, reason: string })
const rulesStatus = objectOf(authorization('SubjectRulesReviewStatus'), {
  resourceRules: listOf(
    objectOf(authorization('ResourceRule'), {
      verbs: listOf(string),
      apiGroups: listOf(string),
      resources: listOf(string),
    }),
  ),
  nonResourceRules: listOf(
    objectOf(authorization('NonResourceRule'), { verbs: listOf(string), nonResourceURLs: listOf(string) }),
  ),
  incomplete: boolean,
})
const userStatus = objectOf(authentication('SelfSubjectReviewStatus'), {
  userInfo: objectOf(authentication('UserInfo'), { username: string, groups: listOf(string) }),
})

export const reviews: readonly ReviewResource[] = [
  define(authorization, 'SelfSubjectAccessReview', { spec: accessSpec, status: accessStatus }, (review, isDocument) => {
    const refusal = findRefusal(getObject(review, 'spec'), isDocument)
    return refusal === '' ? { allowed: true } : { allowed: false, reason: refusal }
  }),
  define(
    authorization,
    'SelfSubjectRulesReview',
    { spec: objectOf(authorization('SelfSubjectRulesReviewSpec'), { namespace: string }), status: rulesStatus },
    (review) => {
      if (getString(getObject(review, 'spec'), 'namespace') === '') throw badRequest('no namespace on request')
      return listRules()
    },
  ),
  define(authentication, 'SelfSubjectReview', { status: userStatus }, () => ({ userInfo: user })),
]

export const findReview = ([root, group, version, plural, ...rest]: readonly string[]): ReviewResource | undefined =>
  root !== 'apis' || rest.length > 0
    ? undefined
    : reviews.find((one) => one.group === group && one.version === version && one.plural === plural)

/** '' if the request that the spec describes would be served; otherwise why not. */
function findRefusal(spec: Json, isDocument: (path: string) => boolean): string {
  const hasResource = spec.resourceAttributes !== undefined
  if (hasResource === (spec.nonResourceAttributes !== undefined)) {
    const message = 'Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified'
    const subject = { group: 'authorization.k8s.io', kind: 'SelfSubjectAccessReview' }
    throw invalid(subject, [{ reason: 'FieldValueInvalid', field: 'spec.resourceAttributes', message }])
  }
  if (hasResource) return refuseResource(getObject(spec, 'resourceAttributes'))
  const { path, verb } = getObject(spec, 'nonResourceAttributes')
  const isRead = verb === 'get' || verb === 'head' || verb === '*'
  const isKnown = String(path ?? '').endsWith('*') || isDocument(String(path ?? ''))
  return isRead && isKnown ? '' : `this API server does not serve ${verb} ${path}`
}

function refuseResource(attributes: Json): string {
  const [group, plural, subresource] = ['group', 'resource', 'subresource'].map((key) => getString(attributes, key))
  const verb = getString(attributes, 'verb')
  if (plural === '*') return ''
  const isMeant = (one: { group: string; plural: string }) =>
    (group === '*' || one.group === group) && one.plural === plural
  const verbs = listVerbs(isMeant, subresource ?? '')
  const name = `${plural}${subresource === '' ? '' : `/${subresource}`}${group === '' ? '' : `.${group}`}`
  if (verbs === undefined) {
    const known = subresource === '' ? unservedResources.find(isMeant) : undefined
    return known === undefined ? `${name} is not served by this API server` : describeUnserved(known)
  }
  return verb === '*' || verbs.includes(verb) ? '' : `this API server does not serve the verb ${verb} for ${name}`
}

/** undefined if nothing of this name is served. */
function listVerbs(
  isMeant: (one: { group: string; plural: string }) => boolean,
  subresource: string,
): readonly string[] | undefined {
  if (subresource === '' && reviews.some(isMeant)) return ['create']
  const served = resources.find(isMeant)
  if (served === undefined) return undefined
  if (subresource === '' || subresource === '*') return verbsOf(served)
  return subresource === 'status' && served.status !== 'none' ? ['get', 'patch', 'update'] : undefined
}

function listRules(): Json {
  const served = resources.map((one) => ({ verbs: verbsOf(one), apiGroups: [one.group], resources: [one.plural] }))
  const asked = reviews.map(({ group, plural }) => ({ verbs: ['create'], apiGroups: [group], resources: [plural] }))
  const statuses = resources
    .filter(({ status }) => status !== 'none')
    .map(({ group, plural }) => ({
      verbs: ['get', 'patch', 'update'],
      apiGroups: [group],
      resources: [`${plural}/status`],
    }))
  return {
    resourceRules: [...served, ...statuses, ...asked],
    nonResourceRules: [{ verbs: ['get'], nonResourceURLs: ['*'] }],
    incomplete: false,
  }
}
