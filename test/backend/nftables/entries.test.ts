import fc from 'fast-check'
import { expect, it } from 'vitest'
import { type FrontendSpec, frontendEntry, readFrontend } from '../../../src/backend/nftables/entries.ts'
import { balanceOf, readBalance } from '../../../src/backend/nftables/rules.ts'

const slots = fc.array(fc.constantFrom('10.0.0.1:80', '10.0.0.2:8080', '[fd00::1]:80'), { maxLength: 5 })

const frontend: fc.Arbitrary<FrontendSpec> = fc.record({
  ip: fc.constantFrom('', '10.96.0.1', 'fd00::96'),
  protocol: fc.constantFrom('tcp', 'udp', 'sctp'),
  port: fc.integer({ min: 1, max: 65_535 }),
  policy: fc.constantFrom('plain', 'masquerade', 'local'),
  choice: fc.constantFrom(undefined, 'hash', 'turn'),
  cluster: slots,
  local: slots,
  comment: fc.constantFrom('', 'ns/name', 'ns/name:http', 'a text with # marks # in it'),
})

it('a frontend is read from its entry as it was', () => {
  fc.assert(
    fc.property(frontend, (spec) => {
      expect(readFrontend(frontendEntry(spec))).toEqual(spec)
    }),
  )
})

it('the chains of a frontend are read from its entry', () => {
  fc.assert(
    fc.property(frontend, (spec) => {
      expect(readBalance(frontendEntry(spec))).toEqual(balanceOf(spec))
    }),
  )
})
