// Passes changes of the node, of its interface addresses and of the API server's addresses on to the engine and to health.

import type { Engine } from '../../engine/engine.ts'
import type { Logger } from '../../lib/log.ts'
import { platform } from '../../sys/platform/platform.ts'
import type { HttpServers } from '../http-servers.ts'
import type { OpenedDaemon } from '../opened-daemon.ts'
import { CidrOverlaps } from './cidr-overlaps.ts'
import type { NodeViews } from './node-views.ts'
import type { NodeWatch } from './node-watch.ts'

export function followNode(
  { apiServers, closers, recorder, savedStart, name, log }: OpenedDaemon,
  node: NodeWatch,
  views: NodeViews,
  { engine, health }: { readonly engine: Engine; readonly health: ReturnType<HttpServers['start']> },
): void {
  node.subscribe((record) => {
    health.setNode(record)
    savedStart.noteNode(record)
    views.update({ zone: record.zone })
  })
  const overlaps = new CidrOverlaps({ recorder, node: name, log })
  views.watch((family, view) => {
    engine.setView(family, view)
    overlaps.check(view, views.addresses)
  })
  apiServers.watch((addresses) => views.update({ apiServers: addresses }))
  views.update({ apiServers: apiServers.list() })
  const onLost = (reason: string) => log.warn('Interface addresses are listed again', { reason })
  const addresses = platform.watchAddresses(() => void refreshAddresses(views, log), { onLost })
  closers.push(() => addresses.close())
}

async function refreshAddresses(views: NodeViews, log: Logger): Promise<void> {
  try {
    views.update({ interfaceAddresses: await platform.listOwnIps() })
  } catch (error) {
    log.error('Cannot list interface addresses; node ports keep their addresses', { error })
  }
}
