// One result of `sluice doctor`: how bad it is, what it means and what to do about it. Pure.

/** `ok` is reported too, so that readers see what was checked; `unknown`: it could not be checked. */
export type Level = 'ok' | 'unknown' | 'note' | 'warning' | 'problem'

export interface Finding {
  readonly level: Level
  /** What was checked: `kernel`, `sysctl net.ipv4.ip_forward`. */
  readonly about: string
  readonly found: string
  /** '' if the level is `ok`. */
  readonly meaning: string
  readonly todo: string
}

export const ok = (about: string, found: string): Finding => ({ level: 'ok', about, found, meaning: '', todo: '' })

/** Reports what could not be looked at, and why. */
export const couldNotLook = (about: string, why: string): Finding => ({
  level: 'unknown',
  about,
  found: `could not look: ${why}`,
  meaning: 'It is not known whether all is well here.',
  todo: 'Run this command as root (sudo) on the node, or with CAP_NET_ADMIN and CAP_SYS_PTRACE.',
})
