// Reads the size of a legacy iptables table, with the socket option that the iptables programs use.

import type { Family } from '../lib/ip.ts'
import { familyNumber } from './ip-numbers.ts'
import * as libc from './libc.ts'
import { callError } from './netlink/netlink-errors.ts'

/** SOL_IP and SOL_IPV6. */
const levels = { 4: 0, 6: 41 } as const
const IPPROTO_RAW = 255
/** IPT_SO_GET_INFO and IP6T_SO_GET_INFO. */
const SO_GET_INFO = 64
/** The length of struct ipt_getinfo: name, valid hooks, five hook entries, five underflows, number of entries, size. */
const infoBytes = 84
const entriesAt = 76

export interface TableSize {
  readonly entries: number
  readonly bytes: number
}

/** Costs one system call, however large the table is. Loads the table if it is not loaded yet. */
export function readTableSize(family: Family, table: string): TableSize {
  const op = `read the size of table ${table}`
  const fd = libc.socket(familyNumber(family), libc.SOCK_RAW | libc.SOCK_CLOEXEC, IPPROTO_RAW)
  if (fd < 0) throw callError('iptables', op, -fd)
  try {
    const info = Buffer.alloc(infoBytes)
    info.write(table, 0, 31)
    const returned = libc.getsockoptBytes(fd, levels[family], SO_GET_INFO, info)
    if (returned < 0) throw callError('iptables', op, -returned)
    const words = new Uint32Array(info.buffer, info.byteOffset + entriesAt, 2)
    return { entries: words[0] as number, bytes: words[1] as number }
  } finally {
    libc.close(fd)
  }
}
