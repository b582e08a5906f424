// Which dialect `trace` is to speak for a mode and its settings.

import type { Mode, Settings } from '../backend/backend.ts'
import { type Dialect, iptables, iptablesWithoutLocalhost, ipvs, nftables, userspace } from '../model/dialect.ts'

export function dialectOf(mode: Mode, settings: Pick<Settings, 'localhostNodePorts'>): Dialect {
  if (mode === 'iptables' && !settings.localhostNodePorts) return iptablesWithoutLocalhost
  return { nftables, iptables, ipvs, userspace }[mode]
}
