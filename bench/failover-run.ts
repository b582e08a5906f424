// One run of bench/failover.ts: a steady load of new connections, a failure in the middle of it, and what the clients saw.

import { setTimeout as delay } from 'node:timers/promises'
import { allPods, type RemoteNodes } from '../test/kernel/remote-nodes.ts'

/** After this time without an answer a connection has failed. */
export const limitMs = 5_000
/** A connection that took longer is slow. */
export const slowMs = 1_000
export const dialEveryMs = 10
const healthyMs = 3_000

interface Dialled {
  /** Milliseconds since the failure; negative before it. */
  readonly at: number
  readonly tookMs: number
  readonly isAnswered: boolean
}

export interface FailoverResult {
  readonly made: number
  readonly failed: number
  readonly slow: number
  /** Seconds from the failure until the last connection that failed or was slow was dialled; undefined if that is the end of the run. */
  readonly cleanAfterS: number | undefined
  /** Failed or slow connections before the failure: the noise of the machine. */
  readonly noise: number
}

/** Dials steadily, makes the failure, and goes on for `watchMs`. */
export async function measureFailure(
  network: RemoteNodes,
  fail: () => Promise<unknown> | unknown,
  watchMs: number,
): Promise<FailoverResult> {
  const dialled: Promise<Dialled>[] = []
  let failedAt = Number.POSITIVE_INFINITY
  const began = performance.now()
  const timer = setInterval(() => {
    // A timer that comes late makes up for it: the rate stays the same.
    while (dialled.length * dialEveryMs < performance.now() - began) dialled.push(dial(network))
  }, dialEveryMs)
  await delay(healthyMs)
  await fail()
  failedAt = performance.now()
  await delay(watchMs)
  clearInterval(timer)
  const all = (await Promise.all(dialled)).map((one) => ({ ...one, at: one.at - failedAt }))
  return summarise(all, watchMs)
}

async function dial(network: RemoteNodes): Promise<Dialled> {
  const at = performance.now()
  const answer = await network.ask(limitMs)
  return { at, tookMs: performance.now() - at, isAnswered: allPods.includes(answer) }
}

function summarise(all: readonly Dialled[], watchMs: number): FailoverResult {
  const isBad = ({ isAnswered, tookMs }: Dialled) => !isAnswered || tookMs > slowMs
  // Those that were on their way when the failure was made belong to it.
  const after = all.filter(({ at, tookMs }) => at + Math.min(tookMs, slowMs) >= 0)
  const last = Math.max(0, ...after.filter(isBad).map(({ at }) => at))
  return {
    made: after.length,
    failed: after.filter(({ isAnswered }) => !isAnswered).length,
    slow: after.filter(({ isAnswered, tookMs }) => isAnswered && tookMs > slowMs).length,
    cleanAfterS: last > watchMs - 1_000 ? undefined : last / 1000,
    noise: all.filter((one) => !after.includes(one)).filter(isBad).length,
  }
}
