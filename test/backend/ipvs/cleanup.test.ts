// Which rules cleanup removes from what iptables-save prints.

import { expect, it } from 'vitest'
import { composeRemoval } from '../../../src/backend/ipvs/cleanup.ts'
import { printJump } from '../../../src/backend/ipvs/rule-text.ts'

const jump = printJump({
  table: 'nat',
  from: 'PREROUTING',
  to: 'KUBE-SERVICES',
  comment: 'kubernetes service portals',
})
const saved = (...lines: string[]): string => `*nat\n${lines.join('\n')}\nCOMMIT\n`
const own = [':KUBE-SERVICES - [0:0]', ':KUBE-MARK-MASQ - [0:0]', jump, '-A KUBE-SERVICES -p tcp -j KUBE-MARK-MASQ']

it('empties our chains, then deletes jumps and chains', () => {
  expect(composeRemoval('nat', saved(':PREROUTING ACCEPT [1:2]', ':CNI - [0:0]', ...own)).split('\n')).toEqual([
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

it('keeps a chain that rules of others use, because the kernel would refuse the whole restore otherwise', () => {
  const text = composeRemoval(
    'nat',
    saved(...own, ':KUBE-SVC-A - [0:0]', '-A KUBE-SVC-A ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ'),
  )
  expect(text).toContain(':KUBE-MARK-MASQ - [0:0]\n')
  expect(text).toContain('-X KUBE-SERVICES\n')
  expect(text).not.toContain('-X KUBE-MARK-MASQ')
})

it('composes nothing where none of our chains exists', () => {
  expect(composeRemoval('nat', saved(':PREROUTING ACCEPT [1:2]', '-A PREROUTING -j CNI'))).toBe('')
})
