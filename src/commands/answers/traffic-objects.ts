// The objects in the JSON of `sluice status` that say what was counted per service port and endpoint. Pure.

import {
  type AnswerFields,
  type AnswerObject,
  boolean,
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
} from './field-types.ts'

const figures: AnswerFields = {
  connections: field(integer, 'New connections, or UDP flows, since counting began. Only grows.'),
  connectionsPerSecond: field(nullable(number), 'Between the last two readings; null before the second reading.'),
  packetsIn: field(nullable(integer), 'Packets from clients; null if not counted.'),
  bytesIn: field(nullable(integer), 'Bytes from clients; null if not counted.'),
  packetsOut: field(nullable(integer), 'Packets to clients; null if not counted.'),
  bytesOut: field(nullable(integer), 'Bytes to clients; null if not counted.'),
}

export const trafficObjects: Readonly<Record<string, AnswerObject>> = {
  Traffic: {
    about: 'What the data plane counted.',
    fields: {
      readAt: field(text, 'RFC 3339: when the counters were read; empty if they were not.'),
      uncounted: field(text, 'Why nothing is counted; empty if connections are counted.'),
      accounting: field(boolean, 'True if packets and bytes are counted.'),
      unaccounted: field(
        text,
        'Why packets and bytes are not counted, or which are missing; empty if all are counted.',
      ),
      ports: field(list(ref('PortTraffic')), 'The busiest first.'),
    },
  },
  PortTraffic: {
    about: 'What was counted for one service port.',
    fields: {
      service: field(text, '`namespace/name`.'),
      port: field(text, 'Name of the port; empty if it has none.'),
      protocol: field(oneOf('tcp', 'udp', 'sctp'), 'Protocol.'),
      family: field(family, 'IP family.'),
      ...figures,
      endpoints: optional(
        list(ref('EndpointTraffic')),
        'Present if one service was asked for. Endpoints that are gone are counted in the port alone.',
      ),
    },
  },
  EndpointTraffic: {
    about: 'What was counted for one endpoint.',
    fields: { address: field(text, '`ip:port`.'), ...figures },
  },
}
