// Sends one packet of a scenario often enough to know what happens to it, and describes the difference from what is expected.

import type { Expectation, Probe } from '../scenarios/format.ts'
import type { Lab } from './lab.ts'
import type { Reply } from './send-packet.ts'
import { inVm } from './vm.ts'

/** Silence is reported only after this time where something else is expected: long enough for retransmissions on a busy machine. */
const replyLimitMs = inVm ? 20_000 : 5000
/** Attempts where the result is always the same. One is enough; where packets are cheap, a second may find a rare fault. */
const sureAttempts = inVm ? 1 : 2
const lateMs = 400

export interface PacketResult {
  /** Undefined if everything is as expected. */
  readonly complaint: string | undefined
  readonly attempts: number
  /** Answers that took longer than 400 ms: they show how busy the machine was. */
  readonly late: number
}

/** The endpoint that each sticky client has, by the name of its group. */
export type StickyEndpoints = Map<string, string>

export async function checkPacket(
  lab: Lab,
  probe: Probe,
  expected: Expectation,
  sticky: StickyEndpoints,
): Promise<PacketResult> {
  const counts = { attempts: 0, late: 0 }
  const send = async (): Promise<Reply> => {
    counts.attempts++
    const begun = performance.now()
    const reply = await lab.probe(probe, expected.outcome === 'drop' ? lab.silenceMs() : replyLimitMs)
    if (expected.outcome !== 'drop' && performance.now() - begun > lateMs) counts.late++
    return reply
  }
  const complaint = await findComplaint({ probe, send, snat: expected.snat }, expected.outcome, sticky)
  return { complaint, ...counts }
}

interface Check {
  readonly probe: Probe
  readonly send: () => Promise<Reply>
  readonly snat: Expectation['snat']
}

function findComplaint(check: Check, outcome: Expectation['outcome'], sticky: StickyEndpoints) {
  if (typeof outcome === 'string') return checkVerdict(check, outcome)
  return check.probe.sticky === '' ? checkSpread(check, outcome) : checkSticky(check, outcome, sticky)
}

async function checkVerdict({ probe, send }: Check, verdict: string): Promise<string | undefined> {
  const replies = await Promise.all(Array.from({ length: probe.sourcePort === 0 ? sureAttempts : 1 }, send))
  const wrong = replies.find((reply) => verdictOf(reply) !== verdict)
  return wrong === undefined ? undefined : `expected ${verdict}, but it ${describe(wrong)}`
}

function verdictOf(reply: Reply): string {
  if (reply.kind === 'passed') return 'pass'
  if (reply.kind === 'dropped') return reply.arrived ? 'answer lost' : 'drop'
  if (reply.kind !== 'rejected') return reply.kind
  return { ECONNREFUSED: 'reject', ECONNRESET: 'reset' }[reply.code] ?? reply.kind
}

/** Every expected endpoint must be reached, and no other. The number of attempts is chosen so that chance fails about once in 10^9. */
async function checkSpread(check: Check, endpoints: readonly string[]): Promise<string | undefined> {
  const seen = new Set<string>()
  const fixed = check.probe.sourcePort !== 0
  const round = fixed ? 1 : attemptsPerRound(endpoints.length)
  const most = fixed ? 1 : 36 * endpoints.length
  for (let attempts = 0; seen.size < endpoints.length && attempts < most; attempts += round) {
    for (const reply of await Promise.all(Array.from({ length: round }, check.send))) {
      const complaint = checkReply(check, reply, endpoints)
      if (complaint !== undefined) return complaint
      if (reply.kind === 'reached') seen.add(reply.endpoint)
    }
  }
  const missed = endpoints.filter((endpoint) => !seen.has(endpoint))
  return missed.length === 0 ? undefined : `never reached ${missed.join(', ')} in ${most} tries`
}

const attemptsPerRound = (endpoints: number): number =>
  endpoints === 1 ? sureAttempts : (1 + sureAttempts) * endpoints

async function checkSticky(
  check: Check,
  endpoints: readonly string[],
  sticky: StickyEndpoints,
): Promise<string | undefined> {
  const group = check.probe.sticky
  for (let i = 0; i < check.probe.count; i++) {
    const reply = await check.send()
    const complaint = checkReply(check, reply, endpoints)
    if (complaint !== undefined) return complaint
    if (reply.kind !== 'reached') continue
    const before = sticky.get(group) ?? reply.endpoint
    if (before !== reply.endpoint) return `expected ${before} as before, but it ${describe(reply)}`
    sticky.set(group, before)
  }
  return undefined
}

function checkReply({ probe, snat }: Check, reply: Reply, endpoints: readonly string[]): string | undefined {
  if (reply.kind !== 'reached' || !endpoints.includes(reply.endpoint)) {
    return `expected one of ${endpoints.join(', ')}, but it ${describe(reply)}`
  }
  const rewritten = reply.seenAs !== reply.sentAs
  const reachesItself = reply.endpoint.replace(/:\d+$/, '').replace(/[[\]]/g, '') === probe.from
  const wanted = snat === 'hairpin' ? reachesItself : snat
  if (wanted === undefined || rewritten === wanted) return undefined
  return `expected the source ${wanted ? 'rewritten' : 'kept'}, but ${reply.endpoint} saw ${reply.seenAs} for ${reply.sentAs}`
}

function describe(reply: Reply): string {
  switch (reply.kind) {
    case 'reached':
      return `reached ${reply.endpoint} as ${reply.seenAs}`
    case 'passed':
      return `passed untouched (${reply.where})`
    case 'rejected':
      return `was rejected (${reply.code})`
    case 'dropped':
      return reply.arrived ? 'arrived at a server, but no answer came back' : 'was dropped'
  }
}
