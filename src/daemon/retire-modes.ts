// Removes what other modes left on this node when the proxy starts in another mode.

import type { Mode, Spared } from '../backend/backend.ts'
import { findMode, modes } from '../backend/modes.ts'
import type { LeftoverTraits, ProxyMode } from '../backend/proxy-mode.ts'
import type { Config } from '../config/configuration.ts'
import { describeError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { sleep, systemClock } from '../lib/time.ts'

const pauseMs = 5_000
/** Connections through another mode's data plane that have not ended by then are cut. */
const limitMs = 3_600_000

/** True if the rules of other modes are removed only after the first sync, since connections live in the old or new data plane. */
export const isHandedOver = (mode: Mode): boolean =>
  findMode(mode).leftovers.handover !== undefined ||
  modes.some(({ leftovers }) => leftovers.handover?.isPresent() === true)

/**
 * Removes what other modes left. Called before the proxy starts, as kube-proxy does, or once it serves if the modes hand over. Resolves
 * when nothing is left; rejects if the signal aborts before.
 */
export async function retireOtherModes(config: Config, log: Logger, signal: AbortSignal): Promise<void> {
  const spared = { cidrs: config.ipvs.excludeCIDRs }
  const end = systemClock.monotonic() + limitMs
  let busy = await retireEach(listOtherModes(config.mode), log, ({ leftovers }) =>
    retire(leftovers, log, spared, false),
  )
  while (busy.length > 0) {
    await sleep(systemClock, pauseMs, signal)
    const isOver = systemClock.monotonic() > end
    busy = await retireEach(busy, log, ({ leftovers }) =>
      isOver ? remove(leftovers, log, spared) : retire(leftovers, log, spared, true),
    )
  }
}

/** As in kube-proxy, modes that cannot distinguish their leftovers leave each other's alone. */
function listOtherModes(mode: Mode): readonly ProxyMode[] {
  const { sharedWith } = findMode(mode).leftovers
  return modes.filter(
    ({ name, leftovers }) => name !== mode && (sharedWith === undefined || leftovers.sharedWith !== sharedWith),
  )
}

/** Returns the modes whose leftovers still carry connections. A failure is logged and not tried again. */
async function retireEach(
  others: readonly ProxyMode[],
  log: Logger,
  retireOne: (mode: ProxyMode) => Promise<boolean>,
): Promise<readonly ProxyMode[]> {
  const busy: ProxyMode[] = []
  for (const mode of others) {
    try {
      if (!(await retireOne(mode))) busy.push(mode)
    } catch (error) {
      log.warn('Cannot remove what another mode left', { mode: mode.name, error: describeError(error) })
    }
  }
  return busy
}

/** Resolves false while connections remain. */
async function retire(leftovers: LeftoverTraits, log: Logger, spared: Spared, again: boolean): Promise<boolean> {
  const { handover } = leftovers
  return handover === undefined ? remove(leftovers, log, spared) : handover.retire(log, again, spared)
}

async function remove({ cleanup }: LeftoverTraits, log: Logger, spared: Spared): Promise<true> {
  await cleanup(log, spared)
  return true
}
