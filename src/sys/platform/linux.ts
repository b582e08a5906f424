// Linux: everything that this program needs is there.

import { ipv6Available, openFileLimit } from '../kernel-facts.ts'
import { listOwnIps, watchAddresses } from '../netlink/interface-addresses.ts'
import { findProgram, programEnvironment } from '../process/find-program.ts'
import { releaseMemory } from '../release-memory.ts'
import { setOomScore, tuneConntrack } from '../tuning.ts'
import type { Platform } from './platform.ts'
import { unixSockets } from './unix-sockets.ts'

export const linux: Platform = {
  name: 'Linux',
  stopSignals: ['SIGTERM', 'SIGINT'],
  // kube-proxy has no handler and dies by the signal; supervisors read that from the wait status.
  endAfter: (signal) => void process.kill(process.pid, signal),
  hasIpv6: () => ipv6Available(),
  listOwnIps: () => listOwnIps(),
  watchAddresses,
  tuneConntrack: (settings) => tuneConntrack(settings),
  setOomScore: (score) => setOomScore(score),
  releaseMemory,
  tracksConnections: true,
  hasAbstractSockets: true,
  openFileLimit: () => openFileLimit(),
  sockets: unixSockets,
  keepsPrivateFiles: true,
  findProgram,
  programEnvironment,
}
