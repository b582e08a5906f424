// The rules that a process of userspace mode leaves when it ends.

import { describe, expect, it } from 'vitest'
import { translateDirectly } from '../../../src/backend/userspace/direct-translation.ts'

const line = '-A KUBE-PORTALS-HOST -d 172.30.0.41 -p tcp -m tcp --dport 80 -m comment --comment "ns1/web"'

describe('rules without a process that relays', () => {
  it('translate to each endpoint with the same chance, and masquerade', () => {
    const endpoints = ['10.0.0.1:8080', '10.0.0.2:8080', '10.0.0.3:8080']
    const [rules, masquerades] = translateDirectly([`${line} <web cluster>\n`], () => endpoints)
    expect(rules?.split('\n')).toEqual([
      `${line} -m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.0.0.1:8080`,
      `${line} -m statistic --mode random --probability 0.5000000000 -j DNAT --to-destination 10.0.0.2:8080`,
      `${line} -j DNAT --to-destination 10.0.0.3:8080`,
    ])
    expect(masquerades?.split('\n')).toHaveLength(3)
    expect(masquerades).toContain('-A KUBE-PORTALS-POSTROUTING -d 10.0.0.2 -p tcp -m tcp --dport 8080 ')
  })

  it('keep lines that lead to no listener, and leave out listeners without endpoints', () => {
    const other = '-A KUBE-PORTALS-FILTER -d 172.30.0.9 -j REJECT'
    const [rules] = translateDirectly([`${other}\n${line} <web cluster>\n`], () => [])
    expect(rules).toBe(other)
  })

  it("name a listener's endpoints once, whatever the number of frontends, and at most 16", () => {
    const endpoints = Array.from({ length: 40 }, (_, i) => `[fd00::${i + 1}]:80`)
    const [, , masquerades] = translateDirectly([`${line} <a>\n`, `${line} <a>\n`], () => endpoints)
    expect(masquerades?.split('\n')).toHaveLength(16)
    expect(masquerades).toContain('-d fd00::1 -p tcp -m tcp --dport 80 ')
  })
})
