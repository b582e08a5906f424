// The verbs that each served resource has, for discovery and access reviews. Pure.

import type { ServedResource } from '../schema/served-resources.ts'

export function verbsOf({ readOnly, plural }: ServedResource): readonly string[] {
  if (readOnly) return ['get', 'list', 'watch']
  const all = ['create', 'delete', 'deletecollection', 'get', 'list', 'patch', 'update', 'watch']
  return plural === 'namespaces' ? all.filter((verb) => verb !== 'deletecollection') : all
}
