// Removes what other modes left on this node once the proxy serves in another mode. running-proxies.ts knows which proxies still run.

import type { Mode, Spared } from '../backend/backend.ts'
import { findMode, modes } from '../backend/modes.ts'
import type { LeftoverTraits, ProxyMode } from '../backend/proxy-mode.ts'
import type { Config } from '../config/configuration.ts'
import { describeError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { systemClock } from '../lib/time.ts'
import type { RunningProxies } from './running-proxies.ts'

const pauseMs = 5_000
/** Connections through another mode's data plane that have not ended by then are cut. */
const limitMs = 3_600_000

/**
 * Removes what other modes left. Called once the proxy serves, so that every connection finds rules of the old mode or the new one. The
 * rules of a proxy that still runs stay until it ends: it would write them again, and connections would fail in between. Resolves when
 * nothing is left; rejects if the signal aborts before.
 */
export async function retireOtherModes(
  config: Config,
  log: Logger,
  proxies: Pick<RunningProxies, 'listModes' | 'waitForEnd'>,
  signal: AbortSignal,
): Promise<void> {
  const spared = { cidrs: config.ipvs.excludeCIDRs }
  const end = systemClock.monotonic() + limitMs
  const begun = new Set<ProxyMode>()
  const kept = new Set<ProxyMode>()
  let running = await proxies.listModes()
  const retireOne = async (mode: ProxyMode): Promise<boolean> => {
    if (running.has(mode.name)) {
      if (!kept.has(mode)) log.info('The rules of a running proxy stay until it ends', { mode: mode.name })
      kept.add(mode)
      return false
    }
    const isOver = systemClock.monotonic() > end
    const isAgain = begun.has(mode)
    begun.add(mode)
    return isOver ? remove(mode.leftovers, log, spared) : retire(mode.leftovers, log, spared, isAgain)
  }
  let busy = await retireEach(listOtherModes(config.mode), log, retireOne)
  while (busy.length > 0) {
    await proxies.waitForEnd(pauseMs, signal)
    running = await proxies.listModes()
    busy = await retireEach(busy, log, retireOne)
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
  return leftovers.retire === undefined ? remove(leftovers, log, spared) : leftovers.retire(log, again, spared)
}

async function remove({ cleanup }: LeftoverTraits, log: Logger, spared: Spared): Promise<true> {
  await cleanup(log, spared)
  return true
}
