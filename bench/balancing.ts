// Prints what a change costs with weights, a slow start and consistent hashing in nftables mode: elements written, and CPU of plan and diff.

import { plan } from '../src/backend/nftables/plan.ts'
import type { Endpoint, ServicePort } from '../src/model/types.ts'
import { TargetHarness } from '../test/backend/nftables/target-harness.ts'
import { service } from '../test/support/builders.ts'
import { resolve } from '../test/support/resolve.ts'

const sizes = [3, 10, 100, 1000]

const endpointsOf = (count: number): readonly Endpoint[] =>
  Array.from({ length: count }, (_, i) => ({ ip: `10.8.${i >> 8}.${i & 255}`, port: 80, local: false }))

interface Change {
  readonly name: string
  readonly before: (count: number) => Partial<ServicePort>
  readonly after: (count: number) => Partial<ServicePort>
}

const withLast = (count: number, last: Partial<Endpoint>): readonly Endpoint[] =>
  endpointsOf(count).map((one, i) => (i === count - 1 ? { ...one, ...last } : one))

const hash = { algorithm: 'consistent-hash' } as const
const slow = { slowStart: true } as const

const changes: readonly Change[] = [
  {
    name: 'an endpoint goes, nothing set',
    before: (count) => ({ cluster: endpointsOf(count) }),
    after: (count) => ({ cluster: endpointsOf(count - 1) }),
  },
  {
    name: 'a weight from 3 to 4',
    before: (count) => ({ cluster: withLast(count, { weight: 3 }) }),
    after: (count) => ({ cluster: withLast(count, { weight: 4 }) }),
  },
  {
    name: 'the first weight is set: 1 to 2',
    before: (count) => ({ cluster: endpointsOf(count) }),
    after: (count) => ({ cluster: withLast(count, { weight: 2 }) }),
  },
  {
    name: 'a step of a slow start',
    before: (count) => ({ ...slow, cluster: withLast(count, { startStep: 4 }) }),
    after: (count) => ({ ...slow, cluster: withLast(count, { startStep: 5 }) }),
  },
  {
    name: 'consistent hashing: an endpoint goes',
    before: (count) => ({ ...hash, cluster: endpointsOf(count) }),
    after: (count) => ({ ...hash, cluster: endpointsOf(count - 1) }),
  },
  {
    name: 'consistent hashing: first write of the table',
    before: () => ({ internal: 'reject' }),
    after: (count) => ({ ...hash, cluster: endpointsOf(count) }),
  },
]

async function measure({ before, after }: Change, count: number): Promise<string> {
  const harness = new TargetHarness()
  const [port] = resolve(service(), [], harness.node)
  if (port === undefined) throw new Error('the service has no port')
  const want = (given: Partial<ServicePort>) =>
    harness.ledger.want(port.service, plan({ ...port, internal: 'cluster', endpoints: count, ...given }, harness.node))
  want(before(count))
  await harness.sync()
  await harness.sweepAll()
  harness.kernel.sizes.length = 0
  const started = process.cpuUsage()
  want(after(count))
  await harness.sync()
  const { user, system } = process.cpuUsage(started)
  const elements = harness.kernel.sizes.reduce((sum, size) => sum + size, 0)
  return `${elements} elements, ${((user + system) / 1000).toFixed(1)} ms`
}

console.log(['change', ...sizes.map((count) => `${count} endpoints`)].join(' | '))
for (const change of changes) {
  // The first run compiles the code.
  await measure(change, 10)
  const cells: string[] = []
  for (const count of sizes) cells.push(await measure(change, count))
  console.log([change.name, ...cells].join(' | '))
}
