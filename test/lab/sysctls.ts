// The sysctls of a lab namespace, written from inside it, so that the host's stay as they are.

import { existsSync, writeFileSync } from 'node:fs'
import type { Namespace } from './namespace.ts'

/** Before any link is made: `default` is what new links begin with. */
const values: Readonly<Record<string, string>> = {
  'ipv4/ip_forward': '1',
  'ipv6/conf/all/forwarding': '1',
  // Replies to masqueraded and hairpin traffic come in where no route would send them.
  'ipv4/conf/all/rp_filter': '0',
  'ipv4/conf/default/rp_filter': '0',
  // Addresses must work at once.
  'ipv6/conf/all/accept_dad': '0',
  'ipv6/conf/default/accept_dad': '0',
  'ipv6/conf/all/accept_ra': '0',
  'ipv6/conf/default/accept_ra': '0',
  // The router sends packets back where they came from; that is the point of the lab, not a mistake to report.
  'ipv4/conf/all/send_redirects': '0',
  'ipv4/conf/default/send_redirects': '0',
  // Many rejections a second, all to the same few hosts.
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
