// Converts the configuration to the settings of a data plane. Pure.

import type { Settings } from '../backend/backend.ts'
import type { Config } from '../config/configuration.ts'
import { parsePortRange } from '../config/value-syntax.ts'

/** `traffic` has our own settings; without a SluiceConfiguration they have their defaults. */
export function makeSettings(config: Config, traffic = { counters: true }): Settings {
  return {
    syncPeriodMs: config.syncPeriod,
    masqueradeBit: config.masqueradeBit,
    localhostNodePorts: config.iptables.localhostNodePorts,
    counters: traffic.counters,
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
