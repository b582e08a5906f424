import { describe, expect, it } from 'vitest'
import { groupByChain, type PortRules, PortText } from '../../../src/backend/iptables/port-text.ts'

const rules: PortRules = {
  chains: ['KUBE-SVC-A', 'KUBE-SEP-A'],
  shared: ['-A KUBE-SERVICES -d 10.0.0.1 -j KUBE-SVC-A'],
  counted: 0,
  own: ['-A KUBE-SVC-A -j KUBE-SEP-A', '-A KUBE-SEP-A -m tcp -p tcp -j DNAT --to-destination 10.1.0.1:80'],
  filter: ['-A KUBE-FORWARD -j ACCEPT'],
  unreached: 2,
}

describe('the text of a port', () => {
  const text = new PortText(rules)

  it('has its parts one after the other, and a remark that is in none of them', () => {
    expect(text.declarations()).toBe(':KUBE-SVC-A - [0:0]\n:KUBE-SEP-A - [0:0]\n')
    expect(text.shared()).toBe(`${rules.shared[0]}\n`)
    expect(text.own()).toBe(`${rules.own.join('\n')}\n`)
    expect(text.nat()).toBe(text.shared() + text.own())
    expect(text.filter()).toBe(`${rules.filter[0]}\n`)
    const parts = text.declarations() + text.nat() + text.filter()
    expect(text.text).toBe(`${parts}# and 2 endpoints that are not reached from here\n`)
    expect([text.chainCount, text.sharedCount, text.ownCount, text.filterCount]).toEqual([2, 1, 2, 1])
  })

  it('may have empty parts', () => {
    const empty = new PortText({ chains: [], shared: [], counted: 0, own: [], filter: [], unreached: 0 })
    expect([empty.text, empty.declarations(), empty.nat(), empty.filter()]).toEqual(['', '', '', ''])
    expect(empty.chains()).toEqual([])
  })

  it('knows its own chains and no others', () => {
    expect(text.chains()).toEqual(['KUBE-SVC-A', 'KUBE-SEP-A'])
    expect(text.declares('KUBE-SEP-A')).toBe(true)
    expect(text.declares('KUBE-SEP')).toBe(false)
    expect(text.declares('KUBE-SERVICES')).toBe(false)
  })

  it('gets comments on endpoints', () => {
    expect(groupByChain(text.ownWithComments('ns/s:p80'))).toEqual(
      new Map([
        ['KUBE-SVC-A', '-A KUBE-SVC-A -m comment --comment "ns/s:p80 -> 10.1.0.1:80" -j KUBE-SEP-A\n'],
        [
          'KUBE-SEP-A',
          '-A KUBE-SEP-A -m comment --comment ns/s:p80 -m tcp -p tcp -j DNAT --to-destination 10.1.0.1:80\n',
        ],
      ]),
    )
  })

  it('has the same rules whatever endpoints there are elsewhere', () => {
    const more = new PortText({ ...rules, unreached: 9 })
    expect(more.text).not.toBe(text.text)
    expect(text.hasSameRules(more)).toBe(true)
    expect(more.hasSameRules(text)).toBe(true)
    expect(text.hasSameRules(new PortText({ ...rules, filter: [] }))).toBe(false)
    expect(text.hasSameRules(new PortText({ ...rules, filter: ['-A KUBE-FORWARD -j REJECT'] }))).toBe(false)
  })
})
