// Which chains and jumps cleanup removes from what iptables-save prints.

import { describe, expect, it } from 'vitest'
import { composeRemoval } from '../../../src/backend/userspace/cleanup.ts'
import { hooks, ownChains } from '../../../src/backend/userspace/portal-chains.ts'

describe('cleanup', () => {
  it('removes our chains and all jumps to them, and nothing else', () => {
    const saved = [
      '*nat',
      ':PREROUTING ACCEPT [0:0]',
      ':DOCKER - [0:0]',
      ...ownChains.nat.map((chain) => `:${chain} - [0:0]`),
      '-A PREROUTING -m comment --comment "handle ClusterIPs" -j KUBE-PORTALS-CONTAINER',
      '-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER',
      '-A KUBE-PORTALS-CONTAINER -d 172.30.0.41/32 -p tcp -j DNAT --to-destination 192.168.0.2:4',
      'COMMIT',
    ].join('\n')
    const lines = composeRemoval('nat', saved).split('\n')
    expect(lines.filter((line) => line.startsWith('-D'))).toEqual([
      '-D PREROUTING -m comment --comment "handle ClusterIPs" -j KUBE-PORTALS-CONTAINER',
    ])
    expect(lines.filter((line) => line.startsWith('-X')).length).toBe(ownChains.nat.length)
    expect(composeRemoval('nat', saved).includes('DOCKER')).toBe(false)
    expect(composeRemoval('nat', '*nat\n:DOCKER - [0:0]\nCOMMIT\n')).toBe('')
  })

  it('covers every chain that a hook jumps to', () => {
    expect(hooks.every(({ table, to }) => ownChains[table].includes(to))).toBe(true)
  })
})
