// Says which services are quarantined and why: one line for a service, also if both IP families refuse it for the same reason. Pure.

import type { QuarantineSummary } from '../../http/admin.ts'
import { familyName } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { formatAge } from '../../lib/time.ts'

/** `now` in Unix ms. */
export function describeQuarantined(quarantined: readonly QuarantineSummary[], now: number): readonly string[] {
  const groups = new Map<string, QuarantineSummary[]>()
  for (const one of quarantined) {
    const key = `${one.service}\n${one.error}`
    groups.set(key, [...(groups.get(key) ?? []), one])
  }
  return [...groups.values()].map((group) => describeGroup(group, now))
}

function describeGroup(group: readonly QuarantineSummary[], now: number): string {
  const [{ service, error } = { service: '', error: '' }] = group
  const families = group.map(({ family }) => familyName(family)).join(' and ')
  const attempts = Math.max(...group.map((one) => one.attempts))
  const retryAt = Math.min(...group.map((one) => Date.parse(one.retryAt)))
  const subject = `${service || 'a leftover'} (${families})`
  return `${subject} is quarantined after ${count(attempts, 'attempt')}: ${error}; next try in ${formatAge(retryAt - now)}`
}
