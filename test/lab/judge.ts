// Sends one packet of a scenario often enough to know what becomes of it, and says in words what is not as expected.

import type { Expectation, Probe } from '../scenarios/format.ts'
import type { Aim, Lab } from './lab.ts'
import type { Reply } from './send.ts'
import { inVm } from './vm.ts'

/** Where something else is expected, time enough for retransmissions on a busy machine before silence is reported. */
const patienceMs = inVm ? 20_000 : 5000
/** Shots at what always comes out the same. One says it all; where they are cheap a second may meet what is rare. */
const sureShots = inVm ? 1 : 2
const lateMs = 400

export interface Verdict {
  /** undefined: as expected. */
  readonly complaint: string | undefined
  readonly shots: number
  /** Answers that took longer than 400 ms: a measure of how busy the machine was. */
  readonly late: number
}

/** Which endpoint each sticky client has, by the name of its group. */
export type Stuck = Map<string, string>

export async function judge(lab: Lab, probe: Probe, expected: Expectation, stuck: Stuck): Promise<Verdict> {
  const counts = { shots: 0, late: 0 }
  const aim = probe as Aim
  const fire = async (): Promise<Reply> => {
    counts.shots++
    const begun = performance.now()
    const reply = await lab.probe(aim, expected.outcome === 'drop' ? lab.silenceMs() : patienceMs)
    if (expected.outcome !== 'drop' && performance.now() - begun > lateMs) counts.late++
    return reply
  }
  const complaint =
    typeof expected.outcome === 'string'
      ? await judgeVerdict(probe, expected.outcome, fire)
      : probe.sticky === ''
        ? await judgeSpread(probe, expected.outcome, expected, fire)
        : await judgeSticky(probe, expected.outcome, expected, stuck, fire)
  return { complaint, ...counts }
}

type Fire = () => Promise<Reply>

async function judgeVerdict(probe: Probe, verdict: string, fire: Fire): Promise<string | undefined> {
  const replies = await Promise.all(Array.from({ length: probe.sourcePort === 0 ? sureShots : 1 }, fire))
  const wrong = replies.find((reply) => verdictOf(reply) !== verdict)
  return wrong === undefined ? undefined : `expected ${verdict}, but it ${describe(wrong)}`
}

function verdictOf(reply: Reply): string {
  if (reply.kind === 'passed') return 'pass'
  if (reply.kind === 'dropped') return reply.arrived ? 'answer lost' : 'drop'
  return reply.kind === 'rejected' && reply.code === 'ECONNREFUSED' ? 'reject' : reply.kind
}

/** Every expected endpoint must be reached, and no other. Chance is given enough tries: about 1 in 10^9 is unlucky. */
async function judgeSpread(
  probe: Probe,
  endpoints: readonly string[],
  expected: Expectation,
  fire: Fire,
): Promise<string | undefined> {
  const seen = new Set<string>()
  const fixed = probe.sourcePort !== 0
  const round = fixed ? 1 : endpoints.length === 1 ? sureShots : (1 + sureShots) * endpoints.length
  const most = fixed ? 1 : 36 * endpoints.length
  for (let shots = 0; seen.size < endpoints.length && shots < most; shots += round) {
    for (const reply of await Promise.all(Array.from({ length: round }, fire))) {
      const complaint = judgeReply(probe, reply, endpoints, expected)
      if (complaint !== undefined) return complaint
      if (reply.kind === 'reached') seen.add(reply.endpoint)
    }
  }
  const missed = endpoints.filter((endpoint) => !seen.has(endpoint))
  return missed.length === 0 ? undefined : `never reached ${missed.join(', ')} in ${most} tries`
}

async function judgeSticky(
  probe: Probe,
  endpoints: readonly string[],
  expected: Expectation,
  stuck: Stuck,
  fire: Fire,
): Promise<string | undefined> {
  for (let i = 0; i < probe.count; i++) {
    const reply = await fire()
    const complaint = judgeReply(probe, reply, endpoints, expected)
    if (complaint !== undefined) return complaint
    if (reply.kind !== 'reached') continue
    const before = stuck.get(probe.sticky) ?? reply.endpoint
    if (before !== reply.endpoint) return `expected ${before} as before, but it ${describe(reply)}`
    stuck.set(probe.sticky, before)
  }
  return undefined
}

function judgeReply(probe: Probe, reply: Reply, endpoints: readonly string[], expected: Expectation) {
  if (reply.kind !== 'reached' || !endpoints.includes(reply.endpoint)) {
    return `expected one of ${endpoints.join(', ')}, but it ${describe(reply)}`
  }
  const rewritten = reply.seenAs !== reply.sentAs
  const own = reply.endpoint.replace(/:\d+$/, '').replace(/[[\]]/g, '') === probe.from
  const wanted = expected.snat === 'hairpin' ? own : expected.snat
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
