// The list of data planes: adding one is a folder and a line here.

import type { Backend, Cleanup, Held, Mode, Retire, Settings } from './backend.ts'
import { iptables } from './iptables/backend.ts'
import { cleanupIptables } from './iptables/cleanup.ts'
import { ipvs } from './ipvs/backend.ts'
import { cleanupIpvs } from './ipvs/cleanup.ts'
import { retireIpvs } from './ipvs/retire.ts'
import { cleanupNftables, nftables } from './nftables/backend.ts'
import { userspace } from './userspace/backend.ts'
import { cleanupUserspace } from './userspace/cleanup.ts'
import { winuserspace } from './userspace/direct/windows.ts'

interface Known {
  readonly make: (settings: Settings) => Backend<Held>
  readonly cleanup: Cleanup
  /** Where connections live in the data plane itself. */
  readonly retire?: Retire
}

const known: Partial<Readonly<Record<Mode, Known>>> = {
  // Before iptables: its chains use some of those that the two share, which can only go after them.
  ipvs: { make: ipvs, cleanup: cleanupIpvs, retire: retireIpvs },
  iptables: { make: iptables, cleanup: cleanupIptables },
  nftables: { make: nftables, cleanup: cleanupNftables },
  userspace: { make: process.platform === 'win32' ? winuserspace : userspace, cleanup: cleanupUserspace },
}

/** Undefined where this build has no such data plane. */
export const findBackend = (mode: Mode): Known['make'] | undefined => known[mode]?.make

/** By mode: what removes its leftovers. */
export const cleanups: ReadonlyMap<Mode, Cleanup> = new Map(
  Object.entries(known).map(([mode, { cleanup }]) => [mode as Mode, cleanup]),
)

/** By mode: what makes room for another mode that serves already. */
export const retirements: ReadonlyMap<Mode, Retire> = new Map(
  Object.entries(known).map(([mode, { cleanup, retire }]) => [
    mode as Mode,
    retire ?? ((log, _, spared) => cleanup(log, spared).then(() => true)),
  ]),
)
