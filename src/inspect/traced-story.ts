// Tells what became of a traced packet, and how that differs from what was foretold. Pure.

import type { Explanation } from '../http/admin.ts'
import type { PacketStory } from '../http/admin-trace.ts'
import { hostPort } from '../lib/ip.ts'
import type { Protocol } from '../model/types.ts'

/** What one rule decided, with what is known of the rule. */
export interface TracedDecision {
  /** `ip kube-proxy`. */
  readonly table: string
  readonly chain: string
  readonly kind: 'policy' | 'return' | 'rule'
  readonly verdict: string
  /** The chain of a jump; '' otherwise. */
  readonly target: string
  readonly comment: string
  /** The expressions of the rule, as the kernel names them. */
  readonly actions: readonly string[]
  /** The addresses of the packet at the beginning of a hook. */
  readonly packet?: PacketAddresses | undefined
}

export interface PacketAddresses {
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
}

export type SeenPacket = Omit<PacketStory, 'foretold' | 'differences'>

/** Undefined if no event had the addresses of the packet. */
export function tellStory(decisions: readonly TracedDecision[], protocol: Protocol): SeenPacket | undefined {
  const headers = decisions.flatMap(({ packet }) => (packet === undefined ? [] : [packet]))
  const [first, last] = [headers[0], headers.at(-1)]
  if (first === undefined || last === undefined) return undefined
  const isTranslated = last.destination !== first.destination || last.destinationPort !== first.destinationPort
  const passed = isTranslated ? 'forward' : 'pass'
  const refusal = decisions.find(({ verdict }) => verdict === 'drop')
  return {
    from: hostPort(first.source, first.sourcePort),
    to: hostPort(first.destination, first.destinationPort),
    protocol,
    verdict: refusal === undefined ? passed : refused(refusal),
    endpoint: isTranslated ? hostPort(last.destination, last.destinationPort) : '',
    snat: decisions.some((one) => hasAction(one, 'masq') || hasAction(one, 'masquerade')),
    rule: refusal === undefined ? '' : describePlace(refusal),
    steps: decisions.flatMap(describeStep),
  }
}

const refused = (decision: TracedDecision) => (hasAction(decision, 'reject') ? 'reject' : 'drop')

const hasAction = ({ actions }: TracedDecision, name: string): boolean =>
  actions.some((action) => action.toLowerCase() === name)

const describePlace = ({ table, chain, kind, comment }: TracedDecision): string => {
  if (kind === 'policy') return `${table} ${chain} (its policy)`
  return comment === '' ? `${table} ${chain}` : `${table} ${chain} (${comment})`
}

/** The end of a chain that decides nothing is not worth a line. */
function describeStep(decision: TracedDecision): readonly string[] {
  const { kind, verdict, target, actions } = decision
  if (kind !== 'rule' && verdict !== 'drop') return []
  return [`${describePlace(decision)}: ${describeAction(verdict, target, actions)}`]
}

const actionWords: readonly (readonly [name: string, words: string])[] = [
  ['reject', 'rejects the packet'],
  ['nat', 'translates the destination'],
  ['dnat', 'translates the destination'],
  ['masq', 'translates the source'],
  ['masquerade', 'translates the source'],
]

function describeAction(verdict: string, target: string, actions: readonly string[]): string {
  const words = actionWords.find(([name]) => actions.some((action) => action.toLowerCase() === name))?.[1]
  if (words !== undefined) return words
  if (target !== '') return `${verdict === 'goto' ? 'goes' : 'jumps'} to ${target}`
  return verdictWords[verdict] ?? verdict
}

const verdictWords: Readonly<Record<string, string>> = {
  drop: 'drops the packet',
  accept: 'accepts the packet',
  continue: 'goes on',
  return: 'returns',
}

const outcomes = { forward: 'forwarded', reject: 'rejected', drop: 'dropped', pass: 'left alone' } as const

/** Returns one sentence per difference. */
export function compareWithForetold(seen: SeenPacket, foretold: Explanation | undefined): readonly string[] {
  if (foretold === undefined) return []
  const by = seen.rule === '' ? '' : ` by ${seen.rule}`
  if (seen.verdict !== foretold.verdict) {
    return [`explain foretold that the packet is ${outcomes[foretold.verdict]}; it was ${outcomes[seen.verdict]}${by}.`]
  }
  if (seen.verdict !== 'forward') return []
  const chosen = foretold.endpoints.find(({ address, probability }) => address === seen.endpoint && probability > 0)
  if (chosen === undefined) return [`${seen.endpoint} is not among the endpoints that explain foretold.`]
  if (chosen.snat === null || chosen.snat === seen.snat) return []
  const words = (snat: boolean) => (snat ? 'is translated' : 'is not translated')
  return [`explain foretold that the source ${words(chosen.snat)}; it ${words(seen.snat)}.`]
}
