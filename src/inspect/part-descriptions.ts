// Describes the parts of entries for people, by the words of the mode's own programs. Pure.

import type { Held } from '../backend/backend.ts'
import type { PartDescription, ProxyMode } from '../backend/proxy-mode.ts'
import type { Family } from '../lib/ip.ts'

export const describePart = ({ explain }: Pick<ProxyMode, 'explain'>, part: Held, family: Family): PartDescription =>
  explain.describePart?.(part, family) ?? {
    name: part.id,
    content: part.digest.trim(),
    command: explain.listCommand,
  }
