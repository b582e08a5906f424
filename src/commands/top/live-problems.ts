// Lists what is wrong with a proxy, for the live view and its header: failed syncs, drift, conflicts, quarantine, manifests. Pure.

import { describeInvalidManifest } from '../../daemon/manifest-problems.ts'
import { familyName } from '../../lib/ip.ts'
import { formatAge } from '../../lib/time.ts'
import { describeHolder } from '../../model/conflicts.ts'
import { describeQuarantined } from '../answers/quarantine-lines.ts'
import type { LiveDocument } from './live-document.ts'
import type { ScreenLine } from './screen-text.ts'

/** How long a repaired change of our rules is shown. */
const driftShownMs = 600_000

/** The worst first. */
export function listProblems({ summary, now }: LiveDocument): readonly ScreenLine[] {
  const failed = summary.families.flatMap(({ family, lastSync }) =>
    lastSync?.ok === false ? [red(`the last sync of ${familyName(family)} failed: ${lastSync.error}`)] : [],
  )
  const quarantined = describeQuarantined(summary.quarantined, now).map(red)
  const conflicts = summary.conflicts.map((conflict) =>
    yellow(`${conflict.frontend} is claimed by ${conflict.loser}, but ${describeHolder(conflict)}`),
  )
  const manifests = summary.invalidManifests.map((problem) =>
    red(`invalid manifest ${describeInvalidManifest(problem)}; the objects of its last valid content stay`),
  )
  const drifts = summary.drifts
    .filter(({ at }) => now - Date.parse(at) < driftShownMs)
    .map(({ family, at, culprit }) =>
      yellow(`${formatAge(now - Date.parse(at))} ago rules (${familyName(family)}) were changed by ${culprit}`),
    )
  return [...failed, ...quarantined, ...manifests, ...drifts, ...conflicts]
}

const red = (text: string): ScreenLine => ({ text, colour: 'red' })
const yellow = (text: string): ScreenLine => ({ text, colour: 'yellow' })
