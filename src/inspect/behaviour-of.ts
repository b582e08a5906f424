// Chooses the behaviour that `trace` assumes for a mode and its settings. Pure.

import type { Mode, Settings } from '../backend/backend.ts'
import {
  iptables,
  iptablesWithoutLocalhost,
  ipvs,
  type ModeBehaviour,
  nftables,
  userspace,
} from '../model/mode-behaviour.ts'

export function behaviourOf(mode: Mode, settings: Pick<Settings, 'localhostNodePorts'>): ModeBehaviour {
  if (mode === 'iptables' && !settings.localhostNodePorts) return iptablesWithoutLocalhost
  return { nftables, iptables, ipvs, userspace }[mode]
}
