// Shortens the pauses of a program under test: a proxy that is cut off from its API server waits longer each time, up to 30 s, and looks for
// lost sockets every 10 s.

import { systemClock } from '../../src/lib/time.ts'

/** The environment of a program with pauses that are five times as short. */
export const shortWaits: NodeJS.ProcessEnv = { SLUICE_TEST_SHORT_WAITS: '1' }

/** Called by the program itself. Limits of a minute and more, and delays that people do not notice, stay as they are. */
export function useShortWaits(): void {
  if (process.env.SLUICE_TEST_SHORT_WAITS !== '1') return
  const { after } = systemClock
  systemClock.after = (ms, run) => after(ms > 700 && ms < 60_000 ? ms / 5 : ms, run)
}
