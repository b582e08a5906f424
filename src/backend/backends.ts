// The list of data planes: adding one is a folder and a line here.

import type { Backend, Cleanup, Held, Mode, Settings } from './backend.ts'
import { iptables } from './iptables/backend.ts'
import { cleanupIptables } from './iptables/cleanup.ts'
import { ipvs } from './ipvs/backend.ts'
import { cleanupIpvs } from './ipvs/cleanup.ts'
import { cleanupNftables, nftables } from './nftables/backend.ts'
import { userspace } from './userspace/backend.ts'
import { cleanupUserspace } from './userspace/cleanup.ts'
import { winuserspace } from './userspace/winuserspace.ts'

interface Known {
  readonly make: (settings: Settings) => Backend<Held>
  readonly cleanup: Cleanup
}

const known: Partial<Readonly<Record<Mode, Known>>> = {
  iptables: { make: iptables, cleanup: cleanupIptables },
  ipvs: { make: ipvs, cleanup: cleanupIpvs },
  nftables: { make: nftables, cleanup: cleanupNftables },
  userspace: { make: process.platform === 'win32' ? winuserspace : userspace, cleanup: cleanupUserspace },
}

/** Undefined where this build has no such data plane. */
export const findBackend = (mode: Mode): Known['make'] | undefined => known[mode]?.make

/** By mode: what removes its leftovers. */
export const cleanups: ReadonlyMap<Mode, Cleanup> = new Map(
  Object.entries(known).map(([mode, { cleanup }]) => [mode as Mode, cleanup]),
)
