import { describe, expect, it } from 'vitest'
import { formOfRule } from '../../../src/backend/iptables-kit/rule-form.ts'

describe('the form of a rule', () => {
  it.each([
    [
      '-A KUBE-SERVICES -m comment --comment "a/b:c cluster IP" -m tcp -p tcp -d 10.96.0.5 --dport 80 -j KUBE-SVC-X',
      '-A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "a/b:c cluster IP" -m tcp --dport 80 -j KUBE-SVC-X',
    ],
    [
      '-A KUBE-SVC-X -m statistic --mode random --probability 0.3333333333 -j KUBE-SEP-Y',
      '-A KUBE-SVC-X -m comment --comment "x -> y" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-Y',
    ],
    [
      '-A KUBE-POSTROUTING -m mark ! --mark 0x00004000/0x00004000 -j RETURN',
      '-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN',
    ],
    ['-A KUBE-POSTROUTING -j MARK --xor-mark 0x00004000', '-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0'],
    ['-A KUBE-MARK-MASQ -j MARK --or-mark 0x00004000', '-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000'],
    [
      '-A C -m conntrack --ctstate ESTABLISHED,RELATED -j REJECT',
      '-A C -m conntrack --ctstate RELATED,ESTABLISHED -j REJECT --reject-with icmp-port-unreachable',
    ],
  ])('is equal for %s as written and as printed', (written, printed) => {
    expect(formOfRule(written)).toBe(formOfRule(printed))
  })

  it.each([
    ['-A C -d 10.0.0.1 -j DROP', '-A C ! -d 10.0.0.1 -j DROP'],
    ['-A C -p tcp --dport 80 -j A', '-A C -p tcp --dport 81 -j A'],
    ['-A C -p tcp --dport 80 -j A', '-A C -p udp --dport 80 -j A'],
    ['-A C -d 10.0.0.0/24 -j A', '-A C -d 10.0.0.0/25 -j A'],
    ['-A C --probability 0.5 -j A', '-A C --probability 0.25 -j A'],
  ])('differs between %s and %s', (one, other) => {
    expect(formOfRule(one)).not.toBe(formOfRule(other))
  })
})
