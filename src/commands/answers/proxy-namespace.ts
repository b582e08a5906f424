// Finds out whether a proxy runs in another network namespace than this process, and how to run a command there.

import { readlinkSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { listNamespaces, namespaceFolder } from '../../sys/netns.ts'

/** Returns `ip netns exec NAME ` or `nsenter … ` for before a command; '' if the proxy is in our namespace or on another machine. */
export function enterPrefix(pid: number): string {
  const path = `/proc/${pid}/ns/net`
  try {
    if (readlinkSync(path) === readlinkSync('/proc/self/ns/net')) return ''
    const { ino } = statSync(path)
    const name = listNamespaces().find((one) => statSync(join(namespaceFolder, one)).ino === ino)
    return name === undefined ? `nsenter --net=${path} ` : `ip netns exec ${name} `
  } catch {
    return ''
  }
}
