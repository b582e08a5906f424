// One result of `sluice doctor`: how bad it is, what it means and what to do about it. Pure.

/** `ok` is reported too, so that readers see what was checked. */
export type Level = 'ok' | 'note' | 'warning' | 'problem'

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
