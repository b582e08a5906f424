// Windows: there are no netlink, no sysctls, no OOM score and no limit of open files, and addresses are polled.

import { win32 } from 'node:path'
import { systemClock } from '../../lib/time.ts'
import { pollAddresses } from '../netlink/interface-addresses.ts'
import { findStateFolder, makeNamedPipes } from './named-pipes.ts'
import type { Platform } from './platform.ts'
import { listMachineAddresses, nameServiceInterface } from './service-interface.ts'

/** `C:\Windows\System32`. */
const systemFolder = (): string => win32.join(process.env.SystemRoot ?? 'C:\\Windows', 'System32')

const listIps = (): readonly string[] => listMachineAddresses(nameServiceInterface(process.env)).map(({ ip }) => ip)

export const windows: Platform = {
  name: 'Windows',
  // Ctrl-C, which service wrappers send to stop; Ctrl-Break; and a console window that is closed.
  stopSignals: ['SIGINT', 'SIGBREAK', 'SIGHUP'],
  // Ending by a signal means TerminateProcess here, which looks like a crash. A service that was stopped exits with 0.
  endAfter: () => {},
  // Every supported version of Windows has IPv6; the backend says which families its interface has.
  hasIpv6: () => true,
  listOwnIps: async () => listIps(),
  watchAddresses(onChange, { pollMs = 30_000, clock = systemClock } = {}) {
    return pollAddresses(onChange, pollMs, clock, listIps)
  },
  tuneConntrack: () => [],
  setOomScore: () => {},
  // Windows trims working sets by itself.
  releaseMemory: () => {},
  tracksConnections: false,
  hasAbstractSockets: false,
  openFileLimit: () => Number.POSITIVE_INFINITY,
  sockets: makeNamedPipes(findStateFolder()),
  keepsPrivateFiles: false,
  findProgram: (name) => win32.join(systemFolder(), `${name}.exe`),
  programEnvironment: () => ({ ...process.env, PATH: systemFolder() }),
}
