// Stands in for the module `vitest` in a VM: the same runner and matchers, without Vite, whose start alone takes half a minute there.

import {
  ASYMMETRIC_MATCHERS_OBJECT,
  chai,
  getState,
  JestAsymmetricMatchers,
  JestChaiExpect,
  JestExtend,
  setState,
} from '@vitest/expect'

export { afterAll, afterEach, beforeAll, beforeEach, describe, it, onTestFinished } from '@vitest/runner'

chai.use(JestExtend)
chai.use(JestChaiExpect)
chai.use(JestAsymmetricMatchers)

type Expect = typeof import('vitest').expect

const base = ((value: unknown, message?: string) => chai.expect(value, message)) as unknown as Expect
const matchers = (globalThis as unknown as Record<symbol, object>)[ASYMMETRIC_MATCHERS_OBJECT]
export const expect: Expect = Object.assign(base, chai.expect, matchers, {
  unreachable(message = ''): never {
    throw new chai.AssertionError(`expected ${message} not to be reached`)
  },
  fail(message = ''): never {
    throw new chai.AssertionError(message)
  },
})
expect.getState = () => getState(expect)
expect.setState = (state) => setState(state, expect)
setState({ assertionCalls: 0 }, expect)
