// The JSON of all commands as one table: docs/json.md and docs/schema/sluice-v1.schema.json are written from it. Pure.

import { answerVersion } from '../terminal.ts'
import {
  type AnswerFields,
  type AnswerObject,
  boolean,
  describeType,
  family,
  field,
  integer,
  list,
  nullable,
  number,
  objectSchema,
  oneOf,
  ref,
  text,
  time,
} from './field-types.ts'
import { fleetObjects } from './fleet-objects.ts'
import { flowAnswers, flowObjects } from './flow-objects.ts'
import { historyAnswers, historyObjects } from './history-objects.ts'
import { proxyObjects } from './proxy-objects.ts'
import { trafficObjects } from './traffic-objects.ts'

/** What a command prints with -o json. Each answer has `apiVersion` and `kind` besides these fields. */
const answers: Readonly<Record<string, AnswerObject>> = {
  Status: {
    about: '`sluice status -o json`.',
    fields: {
      node: field(text, 'Name of the node.'),
      mode: field(text, 'Proxy mode.'),
      proxy: field(nullable(ref('RunningProxy')), 'Null if no running proxy was asked.'),
      families: field(list(ref('FamilyStatus')), 'One per IP family that the node serves.'),
      services: field(list(ref('ServiceStatus')), 'One per service and family, in the order of --sort-by.'),
      traffic: field(
        nullable(ref('Traffic')),
        'What was counted for these services (docs/traffic.md); null if no running proxy was asked.',
      ),
    },
  },
  ExplanationList: {
    about: '`sluice explain -o json`.',
    fields: { items: field(list(ref('Explanation')), 'One for an address; one per frontend for a service.') },
  },
  Plan: {
    about: '`sluice plan -o json`.',
    fields: {
      node: field(text, 'Name of the node.'),
      mode: field(text, 'Proxy mode.'),
      changes: field(list(ref('EntryChange')), 'Empty if nothing would change.'),
      remarks: field(list(text), 'Warnings of the API server, ignored objects, services that would not be programmed.'),
      kernel: field(ref('KernelVerdict'), 'What the kernel says to the change.'),
    },
  },
  Diagnosis: {
    about: '`sluice doctor -o json`.',
    fields: { findings: field(list(ref('Finding')), 'In the order of the checks.') },
  },
  Migration: {
    about: '`sluice doctor --migrate-to MODE -o json`.',
    fields: {
      from: field(text, 'The present mode.'),
      to: field(text, 'The new mode.'),
      differences: field(list(ref('Difference')), 'Packets that the two modes treat differently.'),
    },
  },
  Cleanup: {
    about: '`sluice cleanup -o json`.',
    fields: {
      dryRun: field(boolean, 'True if nothing was removed.'),
      found: field(list(ref('Leftover')), 'What proxies had left on this node.'),
      results: field(list(ref('CleanupResult')), 'One per mode; empty for a dry run.'),
      kept: field(list(ref('KeptObject')), 'What stays because other programs use it as well.'),
    },
  },
  Fleet: {
    about: '`sluice nodes -o json`.',
    fields: {
      nodes: field(list(ref('FleetNode')), 'All nodes.'),
      remarks: field(list(text), 'Sentences about what could not be read.'),
    },
  },
  ...historyAnswers,
  ProxyEvent: {
    about: '`sluice top -o json`: one per line.',
    fields: { time: field(time, 'When the event was received.'), event: field(ref('Event'), 'What happened.') },
  },
  ...flowAnswers,
}

const commandObjects: Readonly<Record<string, AnswerObject>> = {
  EntryChange: {
    about: 'An entry that a change would put, change or drop.',
    fields: {
      action: field(oneOf('put', 'change', 'drop'), 'What would happen to the entry.'),
      family: field(family, 'IP family.'),
      service: field(text, '`namespace/name`; empty for an entry that no service owns.'),
      kind: field(text, 'Kind of entry in this mode, such as `element`, `chain` or `server`.'),
      name: field(text, 'As the program of the mode names it that lists the entry.'),
      before: field(text, 'Content now; empty for an entry that is put.'),
      after: field(text, 'Content after the change; empty for an entry that is dropped.'),
    },
  },
  KernelVerdict: {
    about: 'Whether the kernel accepts a change, tried in a network namespace of its own.',
    fields: {
      verdict: field(oneOf('accepted', 'refused', 'unasked'), 'What the kernel says.'),
      why: field(text, 'Why the kernel was not asked; empty if it was.'),
      refusals: field(list(text), 'One sentence per refused object.'),
    },
  },
  Finding: {
    about: 'One check of the doctor.',
    fields: {
      level: field(oneOf('ok', 'unknown', 'note', 'warning', 'problem'), '`unknown`: it could not be checked.'),
      about: field(text, 'What was checked.'),
      found: field(text, 'What was found.'),
      meaning: field(text, 'What that means; empty if the level is ok.'),
      todo: field(text, 'What to do; empty if the level is ok.'),
    },
  },
  Difference: {
    about: 'A packet that two modes treat differently.',
    fields: {
      service: field(text, '`namespace/name:port`, or `*` for all services.'),
      packet: field(text, 'The packet in words.'),
      now: field(text, 'What the present mode does.'),
      later: field(text, 'What the new mode would do.'),
      why: field(text, 'Why.'),
    },
  },
  Leftover: {
    about: 'Something that a proxy has on this node.',
    fields: {
      mode: field(text, 'The mode that made it.'),
      what: field(text, 'What it is.'),
      where: field(text, 'Where it is.'),
    },
  },
  CleanupResult: {
    about: 'The result of removing what one mode has left.',
    fields: {
      mode: field(text, 'The mode.'),
      removed: field(boolean, 'True if there was something, and it is gone.'),
      error: field(text, 'Why something could not be removed; empty if nothing failed.'),
    },
  },
  KeptObject: {
    about: 'Something that no cleanup removes.',
    fields: {
      what: field(text, 'What it is.'),
      where: field(text, 'Where it is.'),
      why: field(text, 'Why it stays.'),
      commands: field(list(text), 'Shell commands that remove it.'),
    },
  },
  Explanation: {
    about: 'What happens to one packet, and why.',
    fields: {
      node: field(text, 'Name of the node.'),
      mode: field(text, 'Proxy mode.'),
      packet: field(ref('Packet'), 'The packet that was traced.'),
      verdict: field(oneOf('forward', 'reject', 'drop', 'pass'), '`pass`: left to ordinary routing.'),
      reason: field(text, 'A word for the reason; empty if the packet is forwarded.'),
      service: field(text, '`namespace/name:port`; empty if the packet is for no service.'),
      frontend: field(text, 'The address of the service that the packet met; may be empty.'),
      steps: field(list(text), 'One sentence per decision.'),
      endpoints: field(list(ref('EndpointShare')), 'Every endpoint, used or not.'),
      affinitySeconds: field(integer, 'For how long a client keeps its endpoint; 0 without affinity.'),
      snat: field(nullable(boolean), 'True if every endpoint sees this node as the source; null if that is unknown.'),
      hairpin: field(boolean, 'True if only a pod that reaches itself sees this node as the source.'),
      entries: field(list(ref('Entry')), 'What must be in the kernel for this packet.'),
      remarks: field(list(text), 'Conflicts, quarantine, pending changes and what is not known.'),
    },
  },
  Packet: {
    about: 'The first packet of a connection.',
    fields: {
      from: field(text, 'Source address.'),
      to: field(text, 'Destination address.'),
      port: field(integer, 'Destination port.'),
      protocol: field(oneOf('tcp', 'udp', 'sctp'), 'Protocol.'),
      origin: field(oneOf('pod', 'node', 'outside'), 'A pod of this node, the node itself, or elsewhere.'),
    },
  },
  EndpointShare: {
    about: 'An endpoint and its share of connections.',
    fields: {
      address: field(text, '`ip:port`.'),
      node: field(text, 'Name of its node; may be empty.'),
      probability: field(number, 'Between 0 and 1; 0 if the endpoint is not used.'),
      snat: field(nullable(boolean), 'True if this endpoint sees this node as the source; null if that is unknown.'),
      why: field(text, 'Why the endpoint is used or not.'),
    },
  },
  Entry: {
    about: 'Something that the kernel must hold.',
    fields: {
      kind: field(text, 'Kind of entry in this mode, such as `element`, `chain` or `server`.'),
      name: field(text, 'As the program of the mode names it that lists the entry.'),
      content: field(text, 'What it must contain; may be empty.'),
      command: field(text, 'A shell command that shows it, in the network namespace of the proxy.'),
      kernel: field(
        oneOf('present', 'byName', 'missing', 'differs', 'unchecked'),
        'Whether the kernel holds it. `byName`: it does, its content cannot be compared.',
      ),
    },
  },
}

const objects: Readonly<Record<string, AnswerObject>> = {
  ...commandObjects,
  ...proxyObjects,
  ...trafficObjects,
  ...historyObjects,
  ...fleetObjects,
  ...flowObjects,
}

/** Returns docs/schema/sluice-v1.schema.json. */
export function formatSchema(): string {
  const common = (kind: string): AnswerFields => ({
    apiVersion: field(oneOf(answerVersion), 'Version of this format.'),
    kind: field(oneOf(kind), 'What this is.'),
  })
  const defs = [
    ...Object.entries(answers).map(([name, { about, fields }]) => [
      name,
      objectSchema(about, { ...common(name), ...fields }),
    ]),
    ...Object.entries(objects).map(([name, { about, fields }]) => [name, objectSchema(about, fields)]),
  ]
  const schema = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: 'JSON of the sluice commands',
    anyOf: Object.keys(answers).map((name) => ({ $ref: `#/$defs/${name}` })),
    $defs: Object.fromEntries(defs),
  }
  return `${JSON.stringify(schema, undefined, 2)}\n`
}

/** Returns docs/json.md. */
export function formatSchemaDocs(): string {
  return [
    '# JSON of the commands',
    '',
    'Generated from a table in the sources: run `npm run docs` after a change.',
    '',
    `\`-o json\` and \`-o yaml\` are interfaces: every document has \`apiVersion: ${answerVersion}\` and a \`kind\`. AnswerFields of this version keep their`,
    'name, type and meaning; new fields may be added. All times are RFC 3339 in UTC. A field that is not marked optional is always there.',
    'Texts for people (`steps`, `remarks`, `wrong`, `why`, `found`, `content` and the like) may be reworded.',
    '[schema/sluice-v1.schema.json](schema/sluice-v1.schema.json) is the same as JSON Schema.',
    '',
    '## Answers',
    '',
    ...Object.entries(answers).flatMap(([name, type]) => formatObject(name, type)),
    '## Objects',
    '',
    ...Object.entries(objects).flatMap(([name, type]) => formatObject(name, type)),
  ].join('\n')
}

const formatObject = (name: string, { about, fields }: AnswerObject): readonly string[] => [
  `### ${name}`,
  '',
  about,
  '',
  '| field | type | meaning |',
  '| --- | --- | --- |',
  ...Object.entries(fields).map(
    ([key, one]) => `| \`${key}\` | ${describeType(one.type)}${one.optional ? ', optional' : ''} | ${one.about} |`,
  ),
  '',
]
