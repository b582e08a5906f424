// Which connections are removed when an endpoint is ejected, and when: those without a reply that came by a service, after the sync.

import { expect, it } from 'vitest'
import type { Flow } from '../../../src/engine/flows/flow-table.ts'
import { WaitingFlows } from '../../../src/engine/flows/waiting-flows.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const flow = (given: Partial<Flow> = {}): Flow => ({
  protocol: 6,
  destination: '172.30.0.41',
  destinationPort: 80,
  replySource: '10.1.0.1',
  replySourcePort: 8080,
  ...given,
})

function open(flows: readonly Flow[]) {
  const removed: Flow[] = []
  const filters: unknown[] = []
  const waiting = new WaitingFlows<Flow>({
    table: {
      list: async (filter, visit) => {
        filters.push(filter)
        visit(flows)
        return { interrupted: false }
      },
      remove: async (some) => {
        removed.push(...some)
        return some.length
      },
    },
    clock: new FakeClock(),
    log: silentLogger,
  })
  return { waiting, removed, filters }
}

const settle = () => new Promise((resolve) => setImmediate(resolve))

it('removes flows to the ejected endpoint by the service, and no others, after the sync of the service', async () => {
  const own = flow()
  const others = [
    flow({ replySource: '10.1.0.2' }),
    flow({ replySourcePort: 9090 }),
    flow({ destination: '10.1.0.1', destinationPort: 8080 }),
  ]
  const { waiting, removed, filters } = open([own, ...others])
  waiting.note(4, 'ns1/web', ['10.1.0.1:8080'])
  waiting.release(4, ['ns1/other'])
  waiting.release(6, ['ns1/web'])
  await settle()
  expect(filters).toEqual([])
  waiting.release(4, ['ns1/web'])
  await settle()
  expect(filters).toEqual([{ family: 4, protocol: 6, unreplied: true }])
  expect(removed).toEqual([own])
})

it('looks once for all endpoints that are ejected together, and never again without a new one', async () => {
  const { waiting, filters } = open([])
  for (let i = 0; i < 50; i++) waiting.note(4, `ns1/web-${i}`, ['10.1.0.1:8080'])
  waiting.release(
    4,
    Array.from({ length: 50 }, (_, i) => `ns1/web-${i}`),
  )
  await settle()
  waiting.release(4, ['ns1/web-1'])
  await settle()
  expect(filters).toHaveLength(1)
})

it('looks at IPv6 for itself', async () => {
  const own = flow({ destination: 'fd00:30::41', replySource: 'fd00:180::1' })
  const { waiting, removed, filters } = open([own])
  waiting.note(6, 'ns1/web', ['[fd00:180::1]:8080'])
  waiting.release(6, ['ns1/web'])
  await settle()
  expect(filters).toEqual([{ family: 6, protocol: 6, unreplied: true }])
  expect(removed).toEqual([own])
})
