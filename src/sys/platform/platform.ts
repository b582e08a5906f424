// The contract for what differs between operating systems. Everything above sys asks `platform` and never the name of the system.

import type { AddressWatchOptions } from '../netlink/interface-addresses.ts'
import type { HeapCollection } from '../release-memory.ts'
import type { ConntrackSettings } from '../tuning.ts'
import { linux } from './linux.ts'
import type { LocalSockets } from './local-sockets.ts'
import { windows } from './windows.ts'

export interface Platform {
  /** As people write it, for messages. */
  readonly name: 'Linux' | 'Windows'
  /** The signals that ask this process to stop. */
  readonly stopSignals: readonly NodeJS.Signals[]
  /** Ends this process after an orderly stop in the way that supervisors of the system expect. */
  endAfter(signal: NodeJS.Signals): void
  hasIpv6(): boolean
  /** Lists the addresses of the machine itself, without those that a proxy has added for services. */
  listOwnIps(): Promise<readonly string[]>
  /** Calls `onChange` after one of these addresses was added or removed. */
  watchAddresses(onChange: () => void, options?: AddressWatchOptions): { close(): void }
  /** Returns the changes as `name=value`; none where the system does not track connections. */
  tuneConntrack(settings: ConntrackSettings): readonly string[]
  setOomScore(score: number): void
  /** Returns memory to the system that this process does not use now. It holds the event loop for some milliseconds. */
  releaseMemory(how: { readonly collection: HeapCollection }): void
  /** True if the kernel has a table of connections that can be read. */
  readonly tracksConnections: boolean
  /** True if processes of one network can find each other by abstract Unix sockets. */
  readonly hasAbstractSockets: boolean
  /** How many files this process may have open; Infinity if there is no limit. */
  openFileLimit(): number
  readonly sockets: LocalSockets
  /** True if files can be kept private by their owner and mode, and renamed so that this survives a loss of power. */
  readonly keepsPrivateFiles: boolean
  /** Returns the path of a program that only administrators may change; undefined if there is none. PATH is not searched. */
  findProgram(name: string): string | undefined
  /** The environment of such a program: our own, but the program finds others only in the same folders. */
  programEnvironment(): NodeJS.ProcessEnv
}

/** The system on which this process runs. */
export const platform: Platform = process.platform === 'win32' ? windows : linux
