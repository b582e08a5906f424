// Modes in which no rule chooses the endpoint: a trace says so at once, and names what helps instead.

import { expect, it } from 'vitest'
import { modes } from '../../../src/backend/modes.ts'
import { makeTraces } from '../../../src/daemon/traffic/packet-trace.ts'
import { ProxyError } from '../../../src/lib/errors.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const untraceable = modes.filter(({ traffic }) => traffic.traceObstacle !== '')

it('there are two such modes', () => {
  expect(untraceable.map(({ name }) => name).sort()).toEqual(['ipvs', 'userspace'])
})

it.each(untraceable)('a trace in mode $name is refused with a sentence about it', ({ name, traffic }) => {
  const explain = async () => []
  const { trace } = makeTraces({ explain, obstacle: traffic.traceObstacle, clock: new FakeClock() })
  const ask = () => trace({ target: 'ns/web', from: '', seconds: 1, packets: 1 }, () => {})
  expect(ask).toThrow(ProxyError)
  expect(ask).toThrow(new RegExp(`in ${name} mode .* see .* with sluice flows`))
})
