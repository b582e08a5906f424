// Which dialect `trace` is to speak for a mode and its settings.

import type { Mode, Settings } from '../backend/backend.ts'
import { type Dialect, iptables, iptablesWithoutLocalhost, ipvs, nftables } from '../model/dialect.ts'

export function dialectOf(mode: Mode, settings: Pick<Settings, 'localhostNodePorts'>): Dialect {
  if (mode === 'iptables') return settings.localhostNodePorts ? iptables : iptablesWithoutLocalhost
  if (mode === 'ipvs') return ipvs
  return mode === 'nftables' ? nftables : { ...iptablesWithoutLocalhost, name: mode }
}
