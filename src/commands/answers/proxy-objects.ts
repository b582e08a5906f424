// The objects in the JSON of the commands that a running proxy answers with: its state, syncs, services and events. Pure.

import {
  type AnswerObject,
  boolean,
  type FieldType,
  family,
  field,
  integer,
  list,
  nullable,
  number,
  oneOf,
  optional,
  ref,
  text,
  time,
} from './field-types.ts'

const comparison = {
  entries: field(integer, 'How many entries are needed.'),
  inKernel: optional(ref('Presences'), 'What the kernel holds of them; absent if the kernel was not asked.'),
  wrong: field(list(text), 'One sentence per entry that is missing or different in the kernel.'),
}

const policy: FieldType = oneOf('cluster', 'local', 'reject', 'drop')

export const proxyObjects: Readonly<Record<string, AnswerObject>> = {
  RunningProxy: {
    about: 'What only a running proxy can tell.',
    fields: {
      pid: field(integer, 'Process id.'),
      version: field(text, 'Version of Sluice.'),
      startedAt: field(time, 'When it started.'),
      services: field(integer, 'How many services it knows.'),
      conflicts: field(list(ref('Conflict')), 'Addresses that services claim and do not get.'),
      quarantined: field(list(ref('Quarantined')), 'Services that cannot be programmed.'),
      drifts: field(list(ref('Drift')), 'The last changes of rules by other programs, newest first.'),
      invalidManifests: field(
        list(ref('InvalidManifest')),
        'What is wrong now in the files of `sluice up --manifests`.',
      ),
      reports: field(list(ref('SyncReport')), 'The last syncs, newest first.'),
      counters: field(ref('Counters'), 'Totals since the start.'),
      savedState: field(
        nullable(ref('SavedState')),
        'The state that is kept on disk for a start without the API server; null if none is kept.',
      ),
      connections: optional(ref('TrackedConnections'), 'Absent if the kernel tracks no connections.'),
    },
  },
  SavedState: {
    about: 'The state that is kept on disk.',
    fields: {
      path: field(text, 'The file.'),
      inUse: field(
        boolean,
        'True while the proxy serves the saved state, because the API server has not sent its own.',
      ),
      savedAt: field(nullable(time), 'When the state was last that of the API server; null before the first write.'),
      problem: field(text, 'Why the state is not saved, or not used; empty if all is well.'),
    },
  },
  FamilyStatus: {
    about: 'The state of one IP family.',
    fields: {
      family: field(family, 'IP family.'),
      stateHash: field(text, 'Equal on two nodes that should do the same for every service.'),
      entries: field(integer, 'How many entries the services need.'),
      lastSync: field(nullable(ref('SyncReport')), 'Null before the first sync, and if no proxy was asked.'),
      base: field(
        nullable(ref('BaseStatus')),
        'What is needed whatever services there are; null if no proxy was asked.',
      ),
    },
  },
  BaseStatus: { about: 'What a node needs whatever services there are.', fields: comparison },
  ServiceStatus: {
    about: 'One service in one IP family.',
    fields: {
      service: field(text, '`namespace/name`.'),
      family: field(family, 'IP family.'),
      ports: field(list(ref('Port')), 'Its ports.'),
      pending: field(boolean, 'True if a change waits for a sync.'),
      ...comparison,
      lost: field(list(text), 'Addresses that the service claims and does not get, with the reason.'),
      quarantine: field(text, 'Why it cannot be programmed; empty if it can.'),
    },
  },
  Presences: {
    about: 'How many entries are in which state in the kernel.',
    fields: {
      present: field(integer, 'As they should be.'),
      byName: field(integer, 'There, but their content cannot be compared.'),
      missing: field(integer, 'Not there.'),
      differs: field(integer, 'There with other content.'),
      unchecked: field(integer, 'Not looked at, because the kernel could not be read.'),
    },
  },
  Port: {
    about: 'One port of a service.',
    fields: {
      name: field(text, '`namespace/name:port`.'),
      protocol: field(oneOf('tcp', 'udp', 'sctp'), 'Protocol.'),
      frontends: field(list(ref('Frontend')), 'Where clients reach it.'),
      internal: field(policy, 'What happens to traffic for the cluster IP.'),
      external: field(policy, 'What happens to traffic for all other addresses.'),
      endpoints: field(list(ref('Endpoint')), 'The usable endpoints.'),
      ejected: field(
        list(text),
        'Endpoints that are left out for a while, because connections to them fail, with the reason.',
      ),
      drainingUntil: field(
        text,
        'Until when external traffic is forwarded to other nodes, because the policy is Local and the last endpoint on this node has gone; empty if it is not.',
      ),
      affinitySeconds: field(integer, 'For how long a client keeps its endpoint; 0 without affinity.'),
      algorithm: optional(
        oneOf('random', 'round-robin', 'consistent-hash'),
        'How an endpoint is chosen; absent if the mode chooses as it does by itself.',
      ),
    },
  },
  Frontend: {
    about: 'An address of a port of a service.',
    fields: {
      kind: field(oneOf('cluster-ip', 'external-ip', 'load-balancer', 'node-port'), 'Kind of address.'),
      ip: field(text, 'Empty for a node port.'),
      port: field(integer, 'Port.'),
      answersAt: field(text, 'Where it answers on this node; `:30080` on addresses of the node; empty for nowhere.'),
    },
  },
  Endpoint: {
    about: 'An endpoint of a port.',
    fields: {
      address: field(text, '`ip:port`.'),
      local: field(boolean, 'True if it is on this node.'),
      weight: optional(integer, 'Its weight beside the other endpoints; absent if it is 1.'),
      weightFrom: optional(
        oneOf('node-capacity', 'smallest-node'),
        'Where the weight comes from if it is not from annotations. `smallest-node`: the capacity of its own node is not known.',
      ),
      startingPercent: optional(number, 'The percentage of its share that a new endpoint gets now, in a slow start.'),
    },
  },
  SyncReport: {
    about: 'What one sync did.',
    fields: {
      family: field(family, 'IP family.'),
      startedAt: field(time, 'When it started.'),
      causes: field(
        list(oneOf('start', 'change', 'node', 'drift', 'retry', 'rest', 'period')),
        'Why there was a sync.',
      ),
      durationMs: field(number, 'How long it took.'),
      full: field(boolean, 'True if everything was compared with the kernel.'),
      ok: field(boolean, 'False if it failed.'),
      error: field(text, 'Why it failed; empty if it did not.'),
      put: field(integer, 'Entries written.'),
      dropped: field(integer, 'Entries removed.'),
      held: field(integer, 'Entries that the kernel should hold now.'),
      services: field(list(text), 'Services that changed, at most 20.'),
      refused: field(list(ref('Refusal')), 'Entries that the kernel refused.'),
    },
  },
  Refusal: {
    about: 'An entry that the kernel refused.',
    fields: {
      service: field(text, '`namespace/name`.'),
      id: field(text, 'The entry.'),
      error: field(text, 'Why.'),
    },
  },
  Conflict: {
    about: 'A service claims an address that it does not get.',
    fields: {
      family: field(family, 'IP family.'),
      frontend: field(text, '`ip:port/protocol`.'),
      winner: field(text, 'The service that has it, or words for another holder.'),
      loser: field(text, 'The service that claims it.'),
      reason: field(text, 'Why the winner has the better right.'),
    },
  },
  Quarantined: {
    about: 'A service that cannot be programmed.',
    fields: {
      service: field(text, '`namespace/name`.'),
      family: field(family, 'IP family.'),
      error: field(text, 'Why.'),
      attempts: field(integer, 'How often it was tried.'),
      since: field(time, 'Since when.'),
      retryAt: field(time, 'When it is tried again.'),
      entries: field(list(text), 'The refused entries.'),
    },
  },
  Drift: {
    about: 'Another program changed rules of the proxy.',
    fields: {
      family: field(family, 'IP family.'),
      at: field(time, 'When it was noticed.'),
      reason: field(oneOf('changed', 'reports-lost', 'refused', 'undeletable'), 'How it was noticed.'),
      culprit: field(text, 'The program if the kernel names it, and what it changed if that is known.'),
    },
  },
  InvalidManifest: {
    about: 'One problem in a file of manifests.',
    fields: {
      file: field(text, 'The file.'),
      line: field(integer, '0 if the problem is not in a line.'),
      field: field(text, 'Empty if the problem is not in a field.'),
      message: field(text, 'What is wrong.'),
    },
  },
  Counters: {
    about: 'Totals since the proxy started.',
    fields: Object.fromEntries(
      [
        ['syncs', 'Syncs.'],
        ['failures', 'Syncs that failed.'],
        ['puts', 'Entries written.'],
        ['drops', 'Entries removed.'],
        ['refusals', 'Entries refused by the kernel.'],
        ['conflicts', 'Conflicts that began.'],
        ['drifts', 'Changes of rules by other programs.'],
        ['problems', 'Problems in objects.'],
        ['serviceChanges', 'Changes of services.'],
        ['sliceChanges', 'Changes of EndpointSlices.'],
      ].map(([name, about]) => [name, field(integer, about as string)]),
    ),
  },
  TrackedConnections: {
    about: 'The table of tracked connections of the kernel.',
    fields: { tracked: field(integer, 'Connections in it.'), limit: field(integer, 'How many it may have.') },
  },
  Event: {
    about: 'Something that happened in a proxy.',
    fields: {
      kind: field(oneOf('sync', 'conflict', 'resolved', 'drift', 'manifests', 'problem'), 'What happened.'),
      report: optional(ref('SyncReport'), 'Of a sync.'),
      conflict: optional(ref('Conflict'), 'That began or ended (`resolved`).'),
      drift: optional(ref('Drift'), 'Of a drift.'),
      invalid: optional(list(ref('InvalidManifest')), 'Of manifests: everything that is wrong now.'),
      object: optional(text, 'Of a problem: the object.'),
      message: optional(text, 'Of a problem: what is wrong.'),
    },
  },
}
