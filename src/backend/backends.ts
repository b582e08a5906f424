// The list of data planes: adding one is a folder and a line here.

import type { Backend, Cleanup, Held, Mode, Settings } from './backend.ts'

/** A backend with its entry type erased: whatever runs it must work for any. */
export type WithBackend = <R>(use: <E extends Held>(backend: Backend<E>) => R) => R

type Make = (settings: Settings) => WithBackend

const erase =
  <E extends Held>(make: (settings: Settings) => Backend<E>): Make =>
  (settings) =>
  (use) =>
    use(make(settings))

interface Known {
  readonly make: Make
  readonly cleanup: Cleanup
}

const known: Partial<Record<Mode, Known>> = {}

void erase

/** Undefined where this build has no such data plane. */
export const findBackend = (mode: Mode): Make | undefined => known[mode]?.make

/** The modes whose leftovers can be removed. */
export const cleanups = (): readonly (readonly [Mode, Cleanup])[] =>
  Object.entries(known).map(([mode, { cleanup }]) => [mode as Mode, cleanup])
