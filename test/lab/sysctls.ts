// Writes the sysctls of a lab namespace from inside it, so that those of the host do not change.

import { existsSync, writeFileSync } from 'node:fs'
import type { Namespace } from './namespace.ts'

/** Written before any link is made: new links begin with the values of `default`. */
const values: Readonly<Record<string, string>> = {
  'ipv4/ip_forward': '1',
  'ipv6/conf/all/forwarding': '1',
  // Replies to masqueraded and hairpin traffic arrive on interfaces to which no route leads.
  'ipv4/conf/all/rp_filter': '0',
  'ipv4/conf/default/rp_filter': '0',
  // Without duplicate address detection addresses work at once.
  'ipv6/conf/all/accept_dad': '0',
  'ipv6/conf/default/accept_dad': '0',
  'ipv6/conf/all/accept_ra': '0',
  'ipv6/conf/default/accept_ra': '0',
  // The router sends packets back to where they came from on purpose; it must not report that.
  'ipv4/conf/all/send_redirects': '0',
  'ipv4/conf/default/send_redirects': '0',
  // There are many rejections per second, all to the same few hosts.
  'ipv4/icmp_ratelimit': '0',
  'ipv4/icmp_msgs_per_sec': '100000',
  'ipv6/icmp/ratelimit': '0',
  'ipv6/icmp/ratemask': '',
}

export function applySysctls(namespace: Namespace): void {
  namespace.inside(() => {
    for (const [name, value] of Object.entries(values)) {
      const path = `/proc/sys/net/${name}`
      if (existsSync(path)) writeFileSync(path, value)
    }
  })
}
