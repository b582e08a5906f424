// The objects in the JSON of `sluice flows`. Pure.

import { flowVerdicts } from '../../engine/flows/flow-verdicts.ts'
import {
  type AnswerObject,
  boolean,
  family,
  field,
  integer,
  list,
  nullable,
  oneOf,
  ref,
  text,
  time,
} from './field-types.ts'

export const flowAnswers: Readonly<Record<string, AnswerObject>> = {
  FlowList: {
    about: '`sluice flows -o json`.',
    fields: {
      flows: field(list(ref('Flow')), 'The flows to services on this node: open ones, and those that ended lately.'),
      coverage: field(ref('FlowCoverage'), 'How complete the list is.'),
    },
  },
  Trace: {
    about: '`sluice trace -o json`.',
    fields: {
      packets: field(list(ref('TracedPacket')), 'The packets that came by.'),
      lost: field(integer, 'How often the kernel dropped notifications: steps may be missing.'),
    },
  },
  FlowEvent: {
    about:
      '`sluice flows --follow -o json`: one per line, for each flow that begins or ends. This is the export format.',
    fields: { time: field(time, 'When the event was received.'), flow: field(ref('Flow'), 'The flow.') },
  },
  FlowCoverageEvent: {
    about: '`sluice flows --follow -o json`: the first line, and a line whenever the coverage changes.',
    fields: {
      time: field(time, 'When the event was received.'),
      coverage: field(ref('FlowCoverage'), 'How complete the lines are from now on.'),
    },
  },
}

export const flowObjects: Readonly<Record<string, AnswerObject>> = {
  Flow: {
    about: 'A connection to a service, or what a client sent to it over UDP from one port.',
    fields: {
      id: field(text, 'The same in all events of a flow.'),
      family: field(family, 'IP family.'),
      protocol: field(oneOf('tcp', 'udp', 'sctp'), 'Protocol.'),
      from: field(text, '`ip:port` of the client.'),
      fromPod: field(text, '`namespace/name` of the client; empty if it is not a pod, or unknown.'),
      to: field(text, '`ip:port` that the client asked for.'),
      service: field(text, '`namespace/name:port`.'),
      endpoint: field(text, '`ip:port`; empty if no endpoint was chosen.'),
      endpointPod: field(text, '`namespace/name` of the endpoint; empty if unknown.'),
      verdict: field(
        oneOf(...flowVerdicts),
        '`refused`: by the endpoint. `timed-out`: no reply came. `expired`: idle until it was forgotten. `rejected` and `dropped`: by a rule, or by a relay.',
      ),
      rule: field(text, 'The rule that rejected or dropped the packet, or the reason of a relay; empty otherwise.'),
      startedAt: field(nullable(time), 'Null if it began before anyone looked.'),
      endedAt: field(nullable(time), 'Null while it is open, or if it ended before anyone looked.'),
      traffic: field(nullable(ref('FlowTraffic')), 'Null if the kernel does not count.'),
    },
  },
  TracedPacket: {
    about: 'What became of a real packet, as the kernel reported it.',
    fields: {
      from: field(text, '`ip:port` of the client.'),
      to: field(text, '`ip:port` that the client asked for.'),
      protocol: field(oneOf('tcp', 'udp', 'sctp'), 'Protocol.'),
      verdict: field(oneOf('forward', 'reject', 'drop', 'pass'), 'As in an Explanation.'),
      endpoint: field(text, '`ip:port`; empty if the packet was not translated.'),
      snat: field(boolean, 'True if the source was translated.'),
      rule: field(text, 'The rule that rejected or dropped the packet; empty otherwise.'),
      steps: field(list(text), 'One line per rule that decided something.'),
      foretold: field(nullable(ref('Explanation')), 'What `explain` says about this packet.'),
      differences: field(list(text), 'One sentence per difference; empty if the packet went as foretold.'),
    },
  },
  FlowTraffic: {
    about: 'What a flow has carried.',
    fields: {
      packetsIn: field(integer, 'Packets of the client; 0 for TCP that the proxy relays.'),
      bytesIn: field(integer, 'Bytes of the client.'),
      packetsOut: field(integer, 'Packets to the client; 0 for TCP that the proxy relays.'),
      bytesOut: field(integer, 'Bytes to the client.'),
    },
  },
  FlowCoverage: {
    about: 'How complete the shown flows are.',
    fields: {
      sampled: field(integer, 'One in so many flows is shown; 1 if all are.'),
      lost: field(integer, 'How often the kernel dropped notifications since someone looks.'),
      skipped: field(integer, 'Flows that are not shown because there are too many.'),
      watchers: field(integer, 'Commands and pages that follow flows now.'),
      remarks: field(list(text), 'What this mode or node cannot tell.'),
    },
  },
}
