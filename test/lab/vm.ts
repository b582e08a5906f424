// Whether tests run in a VM whose CPU is emulated (test/vm starts it), and how much time and work that allows.

export const inVm = process.env.SLUICE_IN_VM === '1'

/** True where everything is tested. In a VM only a part is, unless SLUICE_FULL=1. */
export const full = !inVm || process.env.SLUICE_FULL === '1'

/** A time limit for this machine; `ms` is the limit on a real one. */
export const timeLimit = (ms: number): number => (inVm ? 12 * ms : ms)
