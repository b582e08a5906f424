// The objects in the JSON of `sluice history`. Pure.

import {
  type AnswerObject,
  boolean,
  family,
  field,
  integer,
  list,
  nullable,
  number,
  oneOf,
  ref,
  text,
  time,
} from './field-types.ts'

export const historyAnswers: Readonly<Record<string, AnswerObject>> = {
  History: {
    about: '`sluice history -o json`.',
    fields: {
      oldest: field(nullable(ref('HistoryBegin')), 'How far the history reaches; null if no sync is recorded.'),
      records: field(list(ref('HistoryRecord')), 'The syncs that match, newest first.'),
      truncated: field(boolean, 'True if older syncs match and were left out because of the limit.'),
    },
  },
  HistoryDifference: {
    about: '`sluice history diff A B -o json`.',
    fields: {
      from: field(integer, 'The last recorded sync up to A; 0 if the history does not reach that far.'),
      to: field(integer, 'The last recorded sync up to B; 0 if there is none.'),
      syncs: field(integer, 'How many recorded syncs are in between.'),
      services: field(list(ref('ChangedService')), 'Services whose frontends, endpoints or settings differ.'),
      entries: field(list(ref('EntryDifference')), 'Entries that differ, as far as this proxy wrote them.'),
      repairs: field(integer, 'How many syncs in between repaired what another program had changed.'),
      gaps: field(list(text), 'What is not known, one sentence each; empty if the difference is complete.'),
    },
  },
}

export const historyObjects: Readonly<Record<string, AnswerObject>> = {
  HistoryBegin: {
    about: 'The oldest sync that is remembered.',
    fields: { sync: field(integer, 'Its number.'), at: field(time, 'When it began.') },
  },
  HistoryRecord: {
    about: 'One sync: its causes and its effects. Syncs that found nothing to do are counted, and not recorded.',
    fields: {
      sync: field(
        integer,
        'Counts the syncs of both families; with a history on disk the count goes on after a restart.',
      ),
      at: field(time, 'When it began.'),
      durationMs: field(number, 'How long it took.'),
      family: field(family, 'IP family.'),
      ok: field(boolean, 'Whether it succeeded.'),
      error: field(text, 'Why it failed; empty if it succeeded.'),
      full: field(boolean, 'True if the data plane was read and everything was compared.'),
      causes: field(
        list(oneOf('start', 'change', 'node', 'drift', 'retry', 'rest', 'period')),
        'Why there was a sync, in one word each.',
      ),
      objects: field(list(ref('ObjectChange')), 'The objects whose changes the sync took over.'),
      moreObjects: field(integer, 'How many further objects changed that are not named.'),
      notes: field(list(ref('CauseNote')), 'Causes that are not changes of objects.'),
      services: field(list(text), 'The services that the sync changed, `namespace/name`.'),
      moreServices: field(integer, 'How many further services it changed.'),
      put: field(integer, 'How many entries were written.'),
      dropped: field(integer, 'How many entries were removed.'),
      entries: field(list(ref('EntryWrite')), 'The first of these entries.'),
      refused: field(list(ref('Refusal')), 'The first of what the kernel refused.'),
    },
  },
  ObjectChange: {
    about: 'The change of an object. Managers are names that clients give themselves; times of managers have seconds.',
    fields: {
      kind: field(oneOf('Service', 'EndpointSlice', 'Node', 'ServiceCIDR'), 'Kind of the object.'),
      name: field(text, '`namespace/name`, or `name`.'),
      service: field(text, 'The service that the change is about, `namespace/name`; empty for all.'),
      action: field(oneOf('added', 'changed', 'deleted'), 'What happened to the object.'),
      resourceVersion: field(text, 'The version of the object; empty if it is not known.'),
      manager: field(
        text,
        'The field manager that changed the object last, from metadata.managedFields; several joined by `or` if they did so in the same second; empty if it is not known, and for a deleted object.',
      ),
      operation: field(text, '`Update` or `Apply`; empty if the manager is not known.'),
      subresource: field(text, 'Such as `status`; empty for the object itself.'),
      parts: field(list(ref('PartChange')), 'The frontends, endpoints and settings that changed.'),
      moreParts: field(integer, 'How many further parts changed that are not named.'),
    },
  },
  PartChange: {
    about: 'A frontend, an endpoint or a setting that changed.',
    fields: {
      part: field(text, 'Such as `endpoint 10.1.0.11:8080/tcp`, `cluster-ip 10.96.0.1:80/tcp` or `type`.'),
      before: field(text, 'What it was; empty if it was not there.'),
      after: field(text, 'What it is; empty if it is not there.'),
    },
  },
  CauseNote: {
    about: 'A cause of a sync that is not a change of an object.',
    fields: {
      kind: field(
        oneOf('start', 'drift', 'node', 'retry', 'ejection', 'drain', 'settings', 'capacity'),
        '`drift`: another program changed our rules; `ejection`: endpoints to which connections or probes fail; `drain`: local endpoints are drained; `settings`: settings changed while the proxy runs; `capacity`: weights by node capacity changed.',
      ),
      service: field(text, '`namespace/name`; empty for all services.'),
      text: field(text, 'For people. For a drift, the program if the kernel names it, and what it changed.'),
    },
  },
  EntryWrite: {
    about:
      'An entry that was put, changed or dropped. If `before` and `after` are equal, another program had changed or removed the entry, and the sync restored it; if both are empty, another program had added it.',
    fields: {
      id: field(text, 'As the mode names it.'),
      before: field(text, 'A hash of its content before; empty if it was not there, `unknown` if it was not readable.'),
      after: field(text, 'A hash of its content after; empty if it is not there.'),
    },
  },
  ChangedService: {
    about: 'What is different about a service.',
    fields: {
      service: field(text, '`namespace/name`; empty for the node.'),
      parts: field(list(ref('PartChange')), 'The parts that differ.'),
    },
  },
  EntryDifference: {
    about: 'An entry that differs between two points of the history.',
    fields: {
      family: field(family, 'IP family.'),
      id: field(text, 'As the mode names it.'),
      before: field(text, 'A hash of its content before; empty if it was not there, `unknown` if it was not readable.'),
      after: field(text, 'A hash of its content after; empty if it is not there.'),
    },
  },
}
