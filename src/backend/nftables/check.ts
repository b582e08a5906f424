// Compares entries with the table in the kernel, which a second target observes, and with the sockets of this node.

import { silentLogger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import type { NodeView } from '../../model/types.ts'
import { listListeningSockets } from '../../sys/listening-sockets.ts'
import { compareDigests, type Held, type KernelCheck, type OpenContext } from '../backend.ts'

/** What observes the kernel. */
interface Observer {
  observe(signal: AbortSignal): Promise<readonly Held[]>
  close(): Promise<void>
}

export async function checkNftables(
  open: (context: OpenContext) => Promise<Observer>,
  node: NodeView,
  signal: AbortSignal,
): Promise<KernelCheck> {
  const context = { family: node.family, node, log: silentLogger, clock: systemClock, onDrift: () => {} }
  const target = await open(context)
  try {
    const byId = new Map((await target.observe(signal)).map((held) => [held.id, held]))
    const sockets = listListeningSockets()
    return {
      presence: (part) => {
        if (part.kind !== 'listener') return compareDigests(part, byId.get(part.id))
        // The id is `listener 127.0.0.1 tcp 30080`. The proxy that opened the socket knows its endpoints.
        const [, ip, protocol, port] = part.id.split(' ')
        return sockets.has(`${protocol} ${ip} ${port}`) ? 'byName' : 'missing'
      },
    }
  } finally {
    await target.close()
  }
}
