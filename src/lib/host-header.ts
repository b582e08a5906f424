// Decides whether a Host header may come from a client that means this server, and not from a page in a browser that was tricked. Pure.

import { canonicalIp } from './ip.ts'

/**
 * A page of `evil.example` can have its name point to 127.0.0.1 (DNS rebinding). The browser then lets it read our answers, but sends
 * the page's name as Host. An address, `localhost` and the names given cannot belong to such a page. HTTP/1.0 clients send no Host;
 * browsers always do. The name `*` allows every Host.
 */
export function isTrustedHost(header: string | undefined, names: ReadonlySet<string>): boolean {
  if (header === undefined || names.has('*')) return true
  const host = hostOf(header)
  if (host === undefined) return false
  return canonicalIp(host) !== undefined || host === 'localhost' || names.has(host)
}

/** Returns the host in lower case, without its port and the dot at its end; undefined if the header is malformed. */
function hostOf(header: string): string | undefined {
  const match = /^(?:\[([0-9a-f:.]+)\]|([^:[\]\s]+?)\.?)(?::\d{1,5})?$/.exec(header.trim().toLowerCase())
  return match?.[1] ?? match?.[2]
}
