// Opens the accounting of packets and bytes if the settings ask for it and the mode needs it, and prepares the kernel for it.

import { findMode } from '../../backend/modes.ts'
import type { Engine } from '../../engine/engine.ts'
import { describeError } from '../../lib/errors.ts'
import { platform } from '../../sys/platform/platform.ts'
import { ensureSysctl, readSysctl } from '../../sys/sysctl.ts'
import type { NodeViews } from '../node/node-views.ts'
import type { DaemonContext, OpenedDaemon } from '../opened-daemon.ts'
import { AccountingFile } from './accounting-file.ts'
import { accountingSysctl, FlowAccounting } from './flow-accounting.ts'

/** Why the setting has no effect, as the end of a sentence; '' if it has. */
function findObstacle({ options, backend }: Pick<DaemonContext, 'options' | 'backend'>): string {
  if (backend.untracked === true || !platform.tracksConnections)
    return 'the kernel tracks no connections for this proxy'
  if (findMode(options.config.mode).traffic.countsBytes)
    return `mode ${backend.name} counts packets and bytes by itself`
  return options.sluice.traffic.counters ? '' : 'traffic.counters is false'
}

/** Switches on what the kernel must count, if the settings ask for it. A proxy that may not do so uses it if it is on already. */
export function prepareAccounting(daemon: Pick<DaemonContext, 'options' | 'backend' | 'log'>): void {
  const { options, log } = daemon
  if (!options.sluice.traffic.accounting) return
  const obstacle = findObstacle(daemon)
  if (obstacle !== '') {
    log.warn(`traffic.accounting has no effect, because ${obstacle}`)
    return
  }
  try {
    if (ensureSysctl(accountingSysctl, 1)) log.info('Set nf_conntrack_acct; traffic.accounting: false avoids it')
  } catch (error) {
    if (readSysctl(accountingSysctl) !== '1')
      log.warn('Packets and bytes cannot be counted', { error: describeError(error) })
  }
}

export function openAccounting(daemon: OpenedDaemon, engine: Engine, views: NodeViews): void {
  const { options, clock, closers, journal, servers, savedStart, log } = daemon
  if (!options.sluice.traffic.accounting || findObstacle(daemon) !== '') return
  const accounting = new FlowAccounting({
    portsOf: (service, family) => engine.portsOf(service, family),
    journal,
    families: views.families,
    nodeAddresses: () => views.addresses,
    file: savedStart.path === undefined ? undefined : new AccountingFile(savedStart.path, log),
    metrics: servers.metrics.accounting,
    clock,
    log: log.named('accounting'),
  })
  servers.traffic.setAccounting(accounting)
  closers.push(() => accounting.close())
  accounting.open()
}
