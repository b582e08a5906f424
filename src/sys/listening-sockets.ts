// Lists the TCP and UDP sockets of this network namespace that wait for clients, from /proc/net.

import { readFileSync } from 'node:fs'
import { formatIp } from '../lib/ip.ts'

const listenState = '0A'
/** A UDP socket that is not connected. */
const closeState = '07'

/** Returns `tcp 127.0.0.1 30080` for each socket. */
export function listListeningSockets(): ReadonlySet<string> {
  const found = new Set<string>()
  for (const [file, protocol, state] of [
    ['tcp', 'tcp', listenState],
    ['tcp6', 'tcp', listenState],
    ['udp', 'udp', closeState],
    ['udp6', 'udp', closeState],
  ] as const) {
    for (const line of readLines(`/proc/thread-self/net/${file}`)) {
      const [, local = '', , held] = line.trim().split(/\s+/)
      const [address = '', port = ''] = local.split(':')
      if (held === state) found.add(`${protocol} ${decodeAddress(address)} ${Number.parseInt(port, 16)}`)
    }
  }
  return found
}

function readLines(path: string): readonly string[] {
  try {
    return readFileSync(path, 'utf8').split('\n').slice(1)
  } catch {
    // This kernel has no IPv6.
    return []
  }
}

/** The kernel prints each 32 bits as a number of this machine, which is little-endian on all that we support. */
function decodeAddress(hex: string): string {
  const words = Buffer.from(hex, 'hex')
  for (let at = 0; at + 4 <= words.length; at += 4) words.subarray(at, at + 4).reverse()
  return formatIp(words)
}
