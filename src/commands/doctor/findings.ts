// What a doctor finds: how bad it is, what it means, what to do.

/** `ok` is told, so that one sees what was looked at. */
export type Level = 'ok' | 'note' | 'warning' | 'problem'

export interface Finding {
  readonly level: Level
  /** What was looked at: `kernel`, `sysctl net.ipv4.ip_forward`. */
  readonly about: string
  readonly found: string
  /** '' if it is ok. */
  readonly meaning: string
  readonly todo: string
}

export const ok = (about: string, found: string): Finding => ({ level: 'ok', about, found, meaning: '', todo: '' })
