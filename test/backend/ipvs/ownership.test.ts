// Which virtual servers belong to us.

import { describe, expect, it } from 'vitest'
import { decideOwnership } from '../../../src/backend/ipvs/ownership.ts'

describe('decideOwnership', () => {
  const server = {
    family: 4,
    protocol: 'tcp',
    ip: '192.168.0.2',
    port: 3001,
    scheduler: 'rr',
    flags: 0,
    timeout: 0,
  } as const

  const nothing = new Set<string>()
  const isOurs = (bound: ReadonlySet<string>, members: ReadonlySet<string>, ...excludedCidrs: string[]) =>
    decideOwnership({ bound, members, excludedCidrs })(server)

  it('recognises servers by our addresses and by our sets, and no others', () => {
    expect(isOurs(nothing, nothing)).toBe(false)
    expect(isOurs(new Set(['192.168.0.2']), nothing)).toBe(true)
    expect(isOurs(nothing, new Set(['member KUBE-NODE-PORT-TCP 3001']))).toBe(true)
    expect(isOurs(nothing, new Set(['member KUBE-NODE-PORT-UDP 3001']))).toBe(false)
    expect(isOurs(nothing, new Set(['member KUBE-EXTERNAL-IP 192.168.0.2,tcp:3001']))).toBe(true)
  })

  it('never owns a server in an excluded range', () => {
    expect(isOurs(new Set(['192.168.0.2']), nothing, '192.168.0.0/24')).toBe(false)
    expect(isOurs(new Set(['192.168.0.2']), nothing, '10.0.0.0/8')).toBe(true)
  })
})
