// Userspace mode without any rights, for `sluice up` on a workstation: services on loopback ports, no iptables, no root.

import type { Backend, Settings } from '../backend.ts'
import { type DirectEntry, onLoopback, planDirect } from './direct.ts'
import { FileBudget } from './files.ts'
import { ownAddresses, type SocketsOptions, SocketsTarget } from './sockets.ts'

export function userspaceUnprivileged(
  settings: Pick<Settings, 'userspace'>,
  options: Pick<SocketsOptions, 'onListening'> = {},
): Backend<DirectEntry> {
  const budget = new FileBudget()
  const { udpTimeoutMs: udpIdleMs } = settings.userspace
  return {
    name: 'userspace',
    periodic: true,
    families: async () => (ownAddresses().has('::1') ? [4, 6] : [4]),
    prepare: async () => {},
    base: () => [],
    plan: planDirect(onLoopback),
    open: async (context) => new SocketsTarget({ context, udpIdleMs, budget, ...options }),
  }
}
