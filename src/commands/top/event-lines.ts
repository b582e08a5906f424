// Describes syncs and events of a proxy in one line each, for the live view and for `sluice top` on a pipe. Pure.

import { describeInvalidManifest } from '../../daemon/manifest-problems.ts'
import type { SyncCause } from '../../engine/journal.ts'
import type { AdminEvent, InvalidManifest, ReportSummary } from '../../http/admin.ts'
import { familyName } from '../../lib/ip.ts'
import { describeHolder } from '../../model/conflicts.ts'

export function describeEvent(event: AdminEvent): string {
  switch (event.kind) {
    case 'sync':
      return describeReport(event.report)
    case 'conflict':
      return `conflict: ${event.conflict.frontend} is claimed by ${event.conflict.loser}, but ${describeHolder(event.conflict)}`
    case 'resolved':
      return `conflict resolved: ${event.conflict.frontend} of ${event.conflict.loser}`
    case 'drift':
      return `rules were changed by ${event.drift.culprit} (${familyName(event.drift.family)}); repairing`
    case 'manifests':
      return describeManifests(event.invalid)
    case 'problem':
      return `bad object ${event.object}: ${event.message}`
  }
}

const describeManifests = (invalid: readonly InvalidManifest[]): string =>
  invalid.length === 0
    ? 'all manifests are valid'
    : invalid.map((problem) => `invalid manifest ${describeInvalidManifest(problem)}`).join('; ')

const causes: Readonly<Record<SyncCause, string>> = {
  start: 'first sync',
  change: 'objects changed',
  node: 'the node changed',
  drift: 'another program changed our rules',
  retry: 'tried again',
  rest: 'rest of a large service',
  period: 'periodic check',
}

export function describeReport(report: ReportSummary): string {
  const { family, ok, error, put, dropped, durationMs, services } = report
  const why = report.causes.map((cause) => causes[cause]).join(', ')
  const result = ok ? `put ${put}, dropped ${dropped}, ${durationMs.toFixed(1)} ms` : `FAILED: ${error}`
  const names = services.length === 0 ? '' : `: ${services.slice(0, 4).join(', ')}${services.length > 4 ? ', …' : ''}`
  return `${familyName(family)} ${why}: ${result}${names}`
}
