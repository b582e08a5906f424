// The legacy tables of iptables, asked through the socket option the tools use: how many entries a table has, and how large it is.

import type { Family } from '../lib/ip.ts'
import * as libc from './libc.ts'
import { callError } from './netlink/netlink-errors.ts'

const domains = { 4: 2, 6: 10 } as const
const levels = { 4: 0, 6: 41 } as const
const IPPROTO_RAW = 255
const GET_INFO = 64
/** struct ipt_getinfo: name, valid hooks, five hook entries, five underflows, number of entries, size. */
const infoBytes = 84
const entriesAt = 76

export interface TableSize {
  readonly entries: number
  readonly bytes: number
}

/** Costs a system call, however large the table is. Loads the table if it is not there yet. */
export function readTableSize(family: Family, table: string): TableSize {
  const op = `size of table ${table}`
  const fd = libc.socket(domains[family], libc.SOCK_RAW | libc.SOCK_CLOEXEC, IPPROTO_RAW)
  if (fd < 0) throw callError('iptables', op, -fd)
  try {
    const info = Buffer.alloc(infoBytes)
    info.write(table, 0, 31)
    const returned = libc.getsockoptBytes(fd, levels[family], GET_INFO, info)
    if (returned < 0) throw callError('iptables', op, -returned)
    const words = new Uint32Array(info.buffer, info.byteOffset + entriesAt, 2)
    return { entries: words[0] as number, bytes: words[1] as number }
  } finally {
    libc.close(fd)
  }
}
