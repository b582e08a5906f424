// The objects in the JSON of `sluice nodes`. Pure.

import { type AnswerObject, boolean, family, field, integer, list, oneOf, ref, text } from './field-types.ts'

export const fleetObjects: Readonly<Record<string, AnswerObject>> = {
  FleetNode: {
    about: 'The proxy of one node, compared with those of the others.',
    fields: {
      node: field(text, 'Name of the node.'),
      program: field(oneOf('sluice', 'kube-proxy', 'unknown'), 'The proxy of the node.'),
      version: field(text, 'Its version; empty if unknown.'),
      mode: field(text, 'Proxy mode; empty if unknown.'),
      families: field(list(ref('FleetFamily')), 'One per IP family that the node serves.'),
      lastSync: field(text, 'RFC 3339 time of the last sync; empty if unknown.'),
      reportedAt: field(text, 'RFC 3339 time of the last report; empty if there is none.'),
      services: field(integer, 'How many services the proxy knows.'),
      counts: field(ref('FleetCounts'), 'What has gone wrong there.'),
      state: field(
        oneOf('ok', 'differs', 'failing', 'silent', 'unreported', 'uncompared', 'absent'),
        'How the node compares with most nodes.',
      ),
      comparedAtOtherTime: field(boolean, 'True if a difference may be a change in between.'),
      differences: field(list(ref('FleetDifference')), 'Services in which the node differs from most.'),
      differencesComplete: field(boolean, 'False if there are more differences than these.'),
      problems: field(list(text), 'One sentence per thing that is wrong.'),
    },
  },
  FleetFamily: {
    about: 'The state of one IP family of a node, as it was reported.',
    fields: {
      family: field(family, 'IP family.'),
      stateHash: field(text, 'Equal on two nodes that should do the same for every service.'),
      lastSync: field(text, 'RFC 3339 time of the last sync; empty before the first.'),
      error: field(text, 'Why the last sync failed; empty if it did not.'),
    },
  },
  FleetCounts: {
    about: 'What has gone wrong on a node.',
    fields: {
      failedSyncs: field(integer, 'Syncs that failed.'),
      quarantined: field(integer, 'Services that cannot be programmed.'),
      conflicts: field(integer, 'Addresses that services claim and do not get.'),
      drifts: field(integer, 'Changes of rules by other programs.'),
      invalidManifests: field(integer, 'Invalid files of `sluice up --manifests`.'),
    },
  },
  FleetDifference: {
    about: 'A service that a node has otherwise than most nodes.',
    fields: {
      service: field(text, '`namespace/name`; empty if the name is unknown.'),
      how: field(oneOf('other', 'missing', 'extra'), 'It has other content, is missing, or is only there.'),
    },
  },
}
