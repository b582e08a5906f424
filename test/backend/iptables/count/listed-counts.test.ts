// Reads counters out of the listings of iptables 1.8.9.

import { expect, it } from 'vitest'
import { findDestination, findListedCounts } from '../../../../src/backend/iptables/count/listed-counts.ts'

const listing = `-P PREROUTING ACCEPT -c 3 180
-N KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -s 10.1.0.5/32 -m comment --comment "ns/web:http" -c 1 60 -j KUBE-MARK-MASQ
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m comment --comment "ns/web:http" -m tcp -c 7 420 -j DNAT --to-destination 10.1.0.5:80
-A KUBE-SEP-BBBBBBBBBBBBBBBB -p udp -m recent --set --name KUBE-SEP-B --mask 255.255.255.255 --rsource -m udp -c 12 0 -j DNAT --to-destination [fd00::1]:53
-A OTHERS -p tcp -c 9 540 -j DNAT --to-destination 10.1.0.6:80
`

it('finds the packets of rules that translate for endpoints', () => {
  const found = new Map<string, number>()
  findListedCounts(listing, found)
  expect([...found]).toEqual([
    ['KUBE-SEP-AAAAAAAAAAAAAAAA', 7],
    ['KUBE-SEP-BBBBBBBBBBBBBBBB', 12],
  ])
})

it('finds the endpoint of a chain', () => {
  const lines = listing.split('\n')
  expect(findDestination(lines.slice(1, 4))).toBe('10.1.0.5:80')
  expect(findDestination(lines.slice(0, 3))).toBe('')
})
