import { expect, it } from 'vitest'
import { countUses } from '../../../src/backend/iptables-kit/saved-uses.ts'

it('counts a use for every rule in a chain and every jump to it', () => {
  const uses = new Map<string, number>()
  const jumps = new Set<string>()
  const saved = `*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-A\n-A KUBE-A -m comment --comment "x -j KUBE-B" -j KUBE-B\n-A KUBE-A -j RETURN\nCOMMIT\n`
  countUses(saved, { uses, jumps, serviceChains: undefined, table: '' })
  expect(Object.fromEntries(uses)).toEqual({ 'nat PREROUTING': 1, 'nat KUBE-A': 3, 'nat KUBE-B': 1 })
  expect([...jumps]).toEqual(['nat -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-A'])
})
