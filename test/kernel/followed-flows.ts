// Follows the flows of a running proxy through its admin socket while a test runs.

import type { Socket } from 'node:net'
import type { AdminClient } from '../../src/http/admin-client.ts'
import type { FlowCoverage, FlowEvent, FlowQuery, FlowSummary } from '../../src/http/admin-flows.ts'
import { until } from '../support/until.ts'

export const allFlows: FlowQuery = { service: '', from: '', verdicts: [], limit: 10_000 }

export interface FollowedFlows {
  readonly flows: readonly FlowSummary[]
  readonly coverages: readonly FlowCoverage[]
  /** Both, in the order in which they came. */
  readonly events: readonly FlowEvent[]
  /** Resolves with the first flow with this verdict to this address, when there is one. */
  find(verdict: string, to: string): Promise<FlowSummary>
  end(): Promise<void>
}

/** Resolves when the proxy has begun to follow. */
export async function followFlows(client: AdminClient, query: Partial<FlowQuery> = {}): Promise<FollowedFlows> {
  const flows: FlowSummary[] = []
  const coverages: FlowCoverage[] = []
  const events: FlowEvent[] = []
  const stop = new AbortController()
  const done = client.followFlows(
    { ...allFlows, ...query },
    (event) => {
      events.push(event)
      if (event.kind === 'flow') flows.push(event.flow)
      else coverages.push(event.coverage)
    },
    stop.signal,
  )
  // A proxy that is killed ends the feed with an error before the test asks for its end, where it is thrown again.
  done.catch(() => {})
  await until('the proxy follows', () => coverages.length > 0)
  return {
    flows,
    coverages,
    events,
    find: (verdict, to) =>
      until(`a flow to ${to} is ${verdict}`, () => flows.find((flow) => flow.verdict === verdict && flow.to === to)),
    async end() {
      stop.abort()
      await done
    },
  }
}

/** `ip:port` of a connected socket. */
export function addressOf(socket: Socket): string {
  const { address, port } = socket.address() as { address: string; port: number }
  return `${address}:${port}`
}

/** Both sides send FIN. */
export function closeGently(socket: Socket): Promise<void> {
  return new Promise((resolve) => {
    socket.once('close', () => resolve())
    socket.end()
  })
}
