// Runs a relay in a process with few descriptors, and reports on request how many clients it turned away.

import { Balancer } from '../../../src/backend/relay/balancer.ts'
import { relayTcp } from '../../../src/backend/relay/tcp.ts'
import { FdBudget } from '../../../src/backend/userspace/fd-budget.ts'
import { silentLogger } from '../../../src/lib/log.ts'

const [endpoint, budgeted] = process.argv.slice(2) as [string, string]
const balancer = new Balancer(Math.random, () => performance.now())
balancer.update([endpoint], 0)
const shed: Record<string, number> = {}
const relay = await relayTcp({
  host: '127.0.0.1',
  port: 0,
  balancer,
  log: silentLogger,
  onShed: (why) => {
    shed[why] = (shed[why] ?? 0) + 1
  },
  ...(budgeted === 'budget' ? { budget: new FdBudget() } : {}),
})
process.send?.({ port: relay.port })
process.on('message', () => process.send?.({ shed, active: relay.active }))
process.on('disconnect', () => process.exit())
