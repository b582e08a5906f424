// Decides what is not sure about a packet if nobody says how the node detects the traffic of its pods. Pure.
//
// The packet is traced once for each answer that the node could give. What differs between the answers is unknown.

import { familyOf } from '../lib/ip.ts'
import type { Outcome, Packet } from '../model/packet.ts'
import type { NodeView } from '../model/types.ts'

export interface PodDoubt {
  /** It depends on the detector whether endpoints see the client or this node. */
  readonly isSourceUnknown: boolean
  /** The steps of the trace without what is not known. */
  readonly steps: readonly string[]
  readonly remarks: readonly string[]
}

/** Addresses of documentation, from which no packet comes. */
const nobody = { 4: '192.0.2.255/32', 6: '2001:db8:ffff::ffff/128' } as const

const advice = 'add --cluster-cidr, or --config with the configuration of the proxy'

/** Returns undefined if every answer of the detector leads to the same outcome. */
export function describeDoubt(
  view: NodeView,
  packet: Packet,
  traceOn: (node: NodeView) => Outcome,
): PodDoubt | undefined {
  const own = `${packet.from}/${familyOf(packet.from) === 4 ? 32 : 128}`
  const [without, asPod, asOther] = [undefined, own, nobody[view.family]].map((cidr) =>
    traceOn({ ...view, local: cidr === undefined ? undefined : { kind: 'cidr', cidr } }),
  ) as [Outcome, Outcome, Outcome]
  const isSourceUnknown = new Set([without, asPod, asOther].map(isRewritten)).size > 1
  const isPathUnknown = describePath(without) !== describePath(asPod)
  if (!isSourceUnknown && !isPathUnknown) return undefined
  const doubtful = without.steps.filter((step) => !step.startsWith('This node cannot detect traffic of local pods'))
  const unknown = `It is unknown how this node detects its pods, and so whether the source is rewritten: ${advice}.`
  const path = `If ${packet.from} counts as a pod of this node, the packet is ${describePath(asPod)} instead: ${advice}.`
  return {
    isSourceUnknown,
    steps: isSourceUnknown ? [...doubtful, unknown] : doubtful,
    remarks: isPathUnknown ? [path] : [],
  }
}

const isRewritten = (outcome: Outcome): boolean | undefined =>
  outcome.verdict === 'forward' ? outcome.masquerade : undefined

function describePath(outcome: Outcome): string {
  if (outcome.verdict === 'forward') return `forwarded to ${outcome.endpoints.map(({ address }) => address).join(', ')}`
  return { drop: 'dropped', reject: 'refused', pass: 'left alone' }[outcome.verdict]
}
