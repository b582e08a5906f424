// The warnings that clients get with an object that is accepted; the words are those of the real kube-apiserver. Pure.

import { getObject, getString, getStrings, type Json } from './json.ts'
import { isHeadless } from './service-defaults.ts'

export function serviceWarnings(service: Json): readonly string[] {
  const spec = getObject(service, 'spec')
  const checks: readonly (readonly [isDue: boolean, warning: string])[] = [
    [
      spec.type !== 'ExternalName' && getString(spec, 'externalName') !== '',
      'spec.externalName is ignored when spec.type is not "ExternalName"',
    ],
    [
      getStrings(spec, 'externalIPs').length > 0,
      'spec.externalIPs is deprecated and may no longer be implemented in some clusters',
    ],
    [
      spec.trafficDistribution === 'PreferClose',
      'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"',
    ],
    [isHeadless(spec) && spec.sessionAffinity === 'ClientIP', 'spec.SessionAffinity is ignored for headless services'],
  ]
  return checks.flatMap(([isDue, warning]) => (isDue ? [warning] : []))
}

export const sliceWarnings = ({ addressType }: Json): readonly string[] =>
  addressType === 'FQDN' ? ['spec.addressType: FQDN endpoints are deprecated'] : []
