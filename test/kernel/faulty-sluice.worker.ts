// Starts `sluice` from source as sluice.worker.ts does, and makes the machine fail for it when the test sends an order: netlink sockets
// are lost or get small buffers, and the wall clock is stepped.

import { closeSync, openSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { main } from '../../src/main.ts'
import { SO_RCVBUF, SOL_SOCKET, setsockopt } from '../../src/sys/libc.ts'
import { loadKoffi } from '../../src/sys/native-addon.ts'
import { useTestFolders } from '../support/program-folders.ts'
import { useShortWaits } from '../support/short-waits.ts'

export type FaultOrder =
  /** /dev/null takes the place of netlink sockets. `share` is the part of the sockets, from 0 to 1. */
  | { readonly do: 'lose sockets'; readonly share: number }
  | { readonly do: 'shrink buffers' }
  | { readonly do: 'step clock'; readonly ms: number }
  /** Answers with the seconds since the program started, by the monotonic clock. */
  | { readonly do: 'read clock' }

interface Koffi {
  load(path: null): { func(definition: string): (...args: number[]) => number }
}

/** The descriptors of this process that are netlink sockets. */
function netlinkSockets(): readonly number[] {
  const inodes = new Set(
    readFileSync('/proc/self/net/netlink', 'utf8')
      .split('\n')
      .map((line) => `socket:[${line.trim().split(/\s+/).at(-1)}]`),
  )
  return readdirSync('/proc/self/fd').flatMap((fd) => {
    try {
      return inodes.has(readlinkSync(`/proc/self/fd/${fd}`)) ? [Number(fd)] : []
    } catch {
      return []
    }
  })
}

function loseSockets(share: number): number {
  const all = netlinkSockets()
  const lost = all.slice(0, Math.ceil(all.length * share))
  const dup2 = (loadKoffi() as Koffi).load(null).func('int dup2(int from, int to)')
  const nothing = openSync('/dev/null', 'r+')
  for (const fd of lost) dup2(nothing, fd)
  closeSync(nothing)
  return lost.length
}

const realNow = Date.now
const RealDate = Date

function stepClock(ms: number): void {
  const now = () => realNow() + ms
  globalThis.Date = class extends RealDate {
    constructor(...args: [] | ConstructorParameters<typeof RealDate>) {
      super(...((args.length === 0 ? [now()] : args) as [number]))
    }
    static override now = now
  } as DateConstructor
}

function obey(order: FaultOrder): number {
  if (order.do === 'lose sockets') return loseSockets(order.share)
  if (order.do === 'read clock') return performance.now() / 1000
  if (order.do === 'step clock') {
    stepClock(order.ms)
    return 1
  }
  const all = netlinkSockets()
  for (const fd of all) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, 1)
  return all.length
}

process.on('message', (order: FaultOrder) => process.send?.(obey(order)))
// The channel to the test does not keep the program running.
process.channel?.unref()

useTestFolders()
useShortWaits()
await main('sluice', process.argv.slice(2))
