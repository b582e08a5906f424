// Which rules the cleanup removes, given what iptables-save prints.

import { expect, it } from 'vitest'
import { removal } from '../../../src/backend/ipvs/cleanup.ts'
import { savedJump } from '../../../src/backend/ipvs/rule-text.ts'

const jump = savedJump({
  table: 'nat',
  from: 'PREROUTING',
  to: 'KUBE-SERVICES',
  comment: 'kubernetes service portals',
})
const saved = (...lines: string[]): string => `*nat\n${lines.join('\n')}\nCOMMIT\n`
const own = [':KUBE-SERVICES - [0:0]', ':KUBE-MARK-MASQ - [0:0]', jump, '-A KUBE-SERVICES -p tcp -j KUBE-MARK-MASQ']

it('empties our chains, then deletes jumps and chains', () => {
  expect(removal('nat', saved(':PREROUTING ACCEPT [1:2]', ':CNI - [0:0]', ...own)).split('\n')).toEqual([
    '*nat',
    ':KUBE-SERVICES - [0:0]',
    ':KUBE-MARK-MASQ - [0:0]',
    jump.replace('-A', '-D'),
    '-X KUBE-SERVICES',
    '-X KUBE-MARK-MASQ',
    'COMMIT',
    '',
  ])
})

it('leaves a chain that rules of others use, since the kernel would refuse everything', () => {
  const text = removal('nat', saved(...own, ':KUBE-SVC-A - [0:0]', '-A KUBE-SVC-A ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ'))
  expect(text).toContain(':KUBE-MARK-MASQ - [0:0]\n')
  expect(text).toContain('-X KUBE-SERVICES\n')
  expect(text).not.toContain('-X KUBE-MARK-MASQ')
})

it('does nothing where nothing is', () => {
  expect(removal('nat', saved(':PREROUTING ACCEPT [1:2]', '-A PREROUTING -j CNI'))).toBe('')
})
