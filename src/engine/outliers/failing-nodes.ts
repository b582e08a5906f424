// Finds nodes none of whose endpoints answers, from the endpoints that fail; and words for failures. Pure.

import type { EndpointState } from './endpoint-state.ts'

export type Failure = 'refused' | 'unanswered'

/** An endpoint without an answer for this long may be dead; one that has answered since is not. */
export const quietMs = 1_000

export interface NodeState {
  readonly keys: Set<string>
  /** When one of its endpoints last answered. */
  answeredAt: number
}

interface NodeFailures {
  failures: number
  endpoints: number
  since: number
}

export function findDeadNodes(
  suspects: Iterable<EndpointState>,
  nodes: ReadonlyMap<string, NodeState>,
  { failures, now }: { readonly failures: number; readonly now: number },
): readonly string[] {
  const seen = new Map<string, NodeFailures>()
  for (const state of suspects) {
    // A dead node does not refuse connections.
    if (state.node === '' || state.lastFailure !== 'unanswered') continue
    const one = seen.get(state.node) ?? { failures: 0, endpoints: 0, since: now }
    one.failures += state.failures
    one.endpoints++
    one.since = Math.min(one.since, state.failingSince)
    seen.set(state.node, one)
  }
  const isDead = ([node, one]: readonly [string, NodeFailures]) => {
    const answeredAt = nodes.get(node)?.answeredAt ?? Number.NEGATIVE_INFINITY
    return one.endpoints >= 2 && one.failures >= failures && answeredAt < one.since && now - answeredAt >= quietMs
  }
  return [...seen].filter(isDead).map(([node]) => node)
}

export function describeStreak({ failures, lastFailure }: EndpointState): string {
  const verb = lastFailure === 'refused' ? 'refused' : 'not answered'
  return failures === 1
    ? `its connection on trial was ${verb}`
    : `${failures} connections in a row failed, the last was ${verb}`
}
