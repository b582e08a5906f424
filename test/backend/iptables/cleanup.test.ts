import { describe, expect, it } from 'vitest'
import { findTableLeftovers } from '../../../src/backend/iptables/cleanup.ts'

describe('leftovers', () => {
  it('are what a proxy makes, and nothing of kubelet or others', () => {
    const saved = `*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-FAKE - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:CNI-FORWARD - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m comment --comment "my own" -j KUBE-FORWARD
COMMIT
`
    expect(findTableLeftovers('filter', saved)).toEqual({
      jumps: ['-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD'],
      chains: ['KUBE-FORWARD', 'KUBE-SERVICES'],
    })
    const nat = ':KUBE-SVC-X - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-MARK-DROP - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\n'
    expect(findTableLeftovers('nat', nat).chains).toEqual(['KUBE-SVC-X', 'KUBE-MARK-MASQ', 'KUBE-PROXY-CANARY'])
    expect(findTableLeftovers('mangle', ':KUBE-PROXY-CANARY - [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\n').chains).toEqual([
      'KUBE-PROXY-CANARY',
    ])
  })
})
