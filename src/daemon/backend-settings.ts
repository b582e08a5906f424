// From the configuration to a data plane: which mode, and what it is told.

import type { Backend, Held, Mode, Settings } from '../backend/backend.ts'
import { findBackend } from '../backend/modes.ts'
import type { Config } from '../config/configuration.ts'
import { parsePortRange } from '../config/value-syntax.ts'
import { ProxyError } from '../lib/errors.ts'

export function backendFor({ mode, settings }: { mode: Mode; settings: Settings }): Backend<Held> {
  const make = findBackend(mode)
  if (make === undefined) throw new ProxyError('mode', `this build has no "${mode}" data plane`)
  return make(settings)
}

export function settingsOf(config: Config): Settings {
  return {
    syncPeriodMs: config.syncPeriod,
    masqueradeBit: config.masqueradeBit,
    localhostNodePorts: config.iptables.localhostNodePorts,
    ipvs: {
      scheduler: config.ipvs.scheduler,
      excludeCidrs: config.ipvs.excludeCIDRs,
      strictArp: config.ipvs.strictARP,
      tcpTimeoutMs: config.ipvs.tcpTimeout,
      tcpFinTimeoutMs: config.ipvs.tcpFinTimeout,
      udpTimeoutMs: config.ipvs.udpTimeout,
    },
    userspace: {
      portRange: parsePortRange(config.portRange) ?? undefined,
      udpTimeoutMs: config.udpIdleTimeout,
      bindAddress: config.bindAddress,
    },
  }
}
