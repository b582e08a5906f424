// Checks the engine over random histories of objects, faults, drifts and restarts.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Family } from '../../src/lib/ip.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import type { MemoryKernel } from '../support/memory-backend.ts'
import { EngineHarness, endpoint, service, slice, view } from './engine-harness.ts'

// Few names and addresses, so that histories have shared pods, contested addresses and services that are deleted and created again.
const key = fc.constantFrom('ns/a', 'ns/b', 'ns/c', 'kube-system/dns')
const port = fc.record({
  name: fc.constantFrom('http', 'dns'),
  protocol: fc.constantFrom('tcp' as const, 'udp' as const),
  port: fc.constantFrom(53, 80, 8080),
  nodePort: fc.constantFrom(0, 0, 30080),
})
const aService: fc.Arbitrary<ServiceRecord> = fc
  .record({
    key,
    created: fc.nat(2),
    clusterIps: fc.constantFrom(['10.96.0.1'], ['10.96.0.2', 'fd00::2'], ['fd00::3'], ['10.96.0.2']),
    ports: fc.array(port, { maxLength: 2 }),
    // 10.0.0.1 is a pod, and 192.0.2.8:80 is sometimes the address of an API server.
    externalIps: fc.subarray(['192.0.2.7', '192.0.2.8', '10.0.0.1']),
    loadBalancerIps: fc.constantFrom([], [], ['10.0.0.2']),
    externalPolicy: fc.constantFrom('Cluster' as const, 'Local' as const),
    internalPolicy: fc.constantFrom('Cluster' as const, 'Local' as const),
    type: fc.constantFrom('ClusterIP' as const, 'LoadBalancer' as const),
    healthCheckNodePort: fc.constantFrom(0, 30100),
    affinitySeconds: fc.constantFrom(0, 10),
  })
  .map(({ key, ...patch }) => service(key, patch))
const anEndpoint = (family: Family) =>
  fc
    .record({
      ip: fc.constantFrom(...(family === 4 ? ['10.0.0.1', '10.0.0.2', '10.0.0.3'] : ['fd01::1', 'fd01::2'])),
      node: fc.constantFrom('here', 'there'),
      ready: fc.boolean(),
      terminating: fc.boolean(),
      zoneHints: fc.constantFrom([], ['z1'], ['z2']),
    })
    .map(({ ip, ...patch }) => endpoint(ip, patch))
const aSlice: fc.Arbitrary<SliceRecord> = fc.constantFrom<Family>(4, 4, 6).chain((family) =>
  fc
    .record({
      // The label may change from one service to another.
      of: key,
      name: fc.constantFrom('ns/s1', 'ns/s2', 'ns/s3', 'ns/s4'),
      ports: fc.constantFrom(
        [{ name: 'http', protocol: 'tcp' as const, port: 8080 }],
        [
          { name: 'dns', protocol: 'udp' as const, port: 53 },
          { name: 'http', protocol: 'tcp' as const, port: 8080 },
        ],
      ),
      endpoints: fc.array(anEndpoint(family), { maxLength: 3 }),
    })
    .map(({ of, name, ports, endpoints }) => slice(of, [], { key: name, family, ports, endpoints })),
)
const aView: fc.Arbitrary<Partial<NodeView>> = fc.record({
  zone: fc.constantFrom('', 'z1', 'z2'),
  name: fc.constantFrom('here', 'here', 'there'),
  serviceCidrs: fc.constantFrom([], ['10.96.0.0/12']),
  externalIps: fc.boolean(),
  local: fc.constantFrom<NodeView['local']>(undefined, { kind: 'cidr', cidr: '10.0.0.0/24' }),
  apiServers: fc.constantFrom([], [{ ip: '10.0.0.3', port: 8080 }]),
  reserved: fc.constantFrom<Readonly<Record<string, string>>>(
    {},
    { '192.0.2.8:80/tcp': 'the API server', ':30080/tcp': 'the health server', ':30100/tcp': 'the metrics server' },
    { '10.96.0.1:80/tcp': 'the API server' },
  ),
  nodePorts: fc.constantFrom(
    { all: true, addresses: [], loopback: true, loopbackNamed: false },
    { all: false, addresses: ['192.0.2.1'], loopback: false, loopbackNamed: false },
  ),
})

type Step =
  | { do: 'service'; record: ServiceRecord }
  | { do: 'slice'; record: SliceRecord }
  | { do: 'drop'; key: string; kind: 'services' | 'slices' }
  | { do: 'view'; patch: Partial<NodeView> }
  | { do: 'wait'; ms: number }
  | { do: 'fail'; after: number | 'observe' }
  | { do: 'refuse'; ids: string | undefined }
  | { do: 'break'; service: string | undefined }
  | { do: 'tamper'; id: string; digest: string | undefined; silent: boolean }
  | { do: 'restart' }

const event: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: aService.map((record) => ({ do: 'service' as const, record })) },
  { weight: 6, arbitrary: aSlice.map((record) => ({ do: 'slice' as const, record })) },
  { weight: 2, arbitrary: key.map((key) => ({ do: 'drop' as const, kind: 'services' as const, key })) },
  {
    weight: 2,
    arbitrary: fc.constantFrom('ns/s1', 'ns/s2').map((key) => ({ do: 'drop' as const, kind: 'slices' as const, key })),
  },
  { weight: 1, arbitrary: aView.map((patch) => ({ do: 'view' as const, patch })) },
)
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 17, arbitrary: event },
  { weight: 5, arbitrary: fc.constantFrom(0, 1000, 31_000).map((ms) => ({ do: 'wait' as const, ms })) },
  {
    weight: 1,
    arbitrary: fc.constantFrom(0, 1, 3, 'observe' as const).map((after) => ({ do: 'fail' as const, after })),
  },
  {
    weight: 1,
    arbitrary: fc.constantFrom(undefined, '10.96.0.1:', 'hairpin').map((ids) => ({ do: 'refuse' as const, ids })),
  },
  { weight: 1, arbitrary: fc.option(key, { nil: undefined }).map((service) => ({ do: 'break' as const, service })) },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('tamper' as const),
      id: fc.constantFrom('frontend 10.96.0.1:80/tcp', 'hairpin 10.0.0.1', 'alien thing', 'base table'),
      digest: fc.constantFrom(undefined, 'x'),
      silent: fc.boolean(),
    }),
  },
  { weight: 1, arbitrary: fc.constant({ do: 'restart' as const }) },
)

const families: readonly Family[] = [4, 6]

/** Holds the objects, as an API server would, and the current engine. */
class HistoryRunner {
  services = new Map<string, ServiceRecord>()
  slices = new Map<string, SliceRecord>()
  patch: Partial<NodeView> = {}
  broken: string | undefined
  harness: EngineHarness

  constructor(kernels?: EngineHarness['kernels']) {
    this.harness = this.#engine(kernels)
  }

  #engine(kernels?: EngineHarness['kernels']): EngineHarness {
    return new EngineHarness({
      families,
      breaks: (port) => port.service === this.broken,
      ...(kernels === undefined ? {} : { kernels }),
    })
  }

  /** Starts the engine with these records. */
  async begin(
    records: readonly (ServiceRecord | SliceRecord)[] = [...this.services.values(), ...this.slices.values()],
  ) {
    for (const family of families) this.harness.engine.setView(family, view(family, this.patch))
    await this.harness.synced(...records)
  }

  async restart(): Promise<void> {
    await this.harness.engine.stop()
    this.harness = this.#engine(this.harness.kernels)
    await this.begin()
  }

  async run(step: Step): Promise<void> {
    const { harness } = this
    const kernel = harness.kernel
    if (step.do === 'service') {
      this.services.set(step.record.key, step.record)
      harness.put(step.record)
    } else if (step.do === 'slice') {
      this.slices.set(step.record.key, step.record)
      harness.put(step.record)
    } else if (step.do === 'drop') {
      this[step.kind].delete(step.key)
      harness[step.kind].drop(step.key)
    } else if (step.do === 'view') {
      this.patch = step.patch
      for (const family of families) harness.engine.setView(family, view(family, step.patch))
    } else if (step.do === 'wait') await harness.clock.advance(step.ms)
    else if (step.do === 'fail') {
      if (step.after === 'observe') kernel.failObserve = true
      else kernel.failApplyAfter = step.after
    } else if (step.do === 'refuse') {
      const { ids } = step
      kernel.refuses = ids === undefined ? () => false : (id) => id.includes(ids)
    } else if (step.do === 'break') this.broken = step.service
    else if (step.do === 'tamper') kernel.tamper(step.id, step.digest, { silent: step.silent })
    else await this.restart()
  }

  /** Ends all faults, and lets enough time pass for every retry. */
  async heal(): Promise<void> {
    this.broken = undefined
    for (const kernel of this.harness.kernels.values()) {
      kernel.refuses = () => false
      kernel.failObserve = false
      kernel.failApplyAfter = undefined
    }
    await this.harness.clock.advance(600_000)
    // A drift that was not reported is found at the next sync.
    for (const family of families) this.harness.engine.requestSync(family)
    await this.harness.clock.advance(2000)
  }

  contents() {
    return families.map((family) => (this.harness.kernels.get(family) as MemoryKernel).content())
  }
}

async function fromScratch(runner: HistoryRunner, order: 'same' | 'reversed' = 'same') {
  const other = new HistoryRunner()
  other.patch = runner.patch
  const records = [...runner.services.values(), ...runner.slices.values()]
  await other.begin(order === 'same' ? records : records.reverse())
  return other
}

/** The kernels and the answers of the engine equal those of a new engine that gets all objects at once. */
async function expectAsFromScratch(runner: HistoryRunner): Promise<void> {
  const scratch = await fromScratch(runner)
  expect(runner.contents()).toEqual(scratch.contents())
  expect(runner.harness.engine.quarantined()).toEqual([])
  expect(answers(runner)).toEqual(answers(scratch))
}

const answers = ({ harness: { engine } }: HistoryRunner) => ({
  conflicts: sorted(engine.conflicts()),
  families: families.map((family) => ({
    stateHash: engine.stateHash(family),
    health: [...engine.health(family)].sort(),
    udp: [...engine.udpPorts(family)].map((port) => port.id).sort(),
  })),
})

/** Neither a full sync nor a restart writes anything. */
async function expectNoWrites(runner: HistoryRunner): Promise<void> {
  for (const kernel of runner.harness.kernels.values()) kernel.writes.clear()
  for (const family of families) runner.harness.engine.requestSync(family, { full: true })
  await runner.harness.clock.advance(2000)
  expect(runner.harness.last()).toMatchObject({ ok: true, full: true })
  await runner.restart()
  expect(runner.harness.last()).toMatchObject({ ok: true, full: true })
  for (const kernel of runner.harness.kernels.values()) expect([...kernel.writes]).toEqual([])
}

async function expectEmptyAfterDeletion(runner: HistoryRunner): Promise<void> {
  for (const key of [...runner.services.keys()]) await runner.run({ do: 'drop', kind: 'services', key })
  for (const key of [...runner.slices.keys()]) await runner.run({ do: 'drop', kind: 'slices', key })
  await runner.harness.clock.advance(2000)
  for (const kernel of runner.harness.kernels.values()) expect(kernel.ids()).toEqual(['base cidrs', 'base table'])
  expect(runner.harness.engine.conflicts()).toEqual([])
}

describe('Engine, over random histories', () => {
  it('incremental equals full; a second sync and a restart change nothing; deleting everything leaves the base', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 30 }), async (history) => {
        const runner = new HistoryRunner()
        await runner.begin()
        for (const step of history) await runner.run(step)
        await runner.heal()
        await expectAsFromScratch(runner)
        await expectNoWrites(runner)
        await expectEmptyAfterDeletion(runner)
        await runner.harness.engine.stop()
      }),
      { numRuns: 600 },
    )
  })

  it('the order of events does not matter', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(aService, { selector: (record) => record.key }),
        fc.uniqueArray(aSlice, { selector: (record) => record.key }),
        fc.infiniteStream(fc.nat()),
        async (services, slices, random) => {
          const shuffled = [...services, ...slices].map((record) => ({ record, at: random.next().value as number }))
          shuffled.sort((a, b) => a.at - b.at)
          const one = new HistoryRunner()
          await one.begin([...services, ...slices])
          const two = new HistoryRunner()
          await two.begin()
          for (const { record } of shuffled) {
            two.harness.put(record)
            await two.harness.clock.advance(1000)
          }
          expect(two.contents()).toEqual(one.contents())
          expect(two.harness.engine.stateHash(4)).toBe(one.harness.engine.stateHash(4))
        },
      ),
      { numRuns: 300 },
    )
  })

  it('an entry that is up to date is never written, whatever happens to others', async () => {
    const calm = service('ns/calm', { clusterIps: ['10.96.9.9'], created: 0 })
    const rest = slice('ns/calm', [], { endpoints: [endpoint('10.0.9.9')], key: 'ns/calm-1' })
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 25 }), async (history) => {
        const runner = new HistoryRunner()
        await runner.begin()
        for (const record of [calm, rest])
          await runner.run('service' in record ? { do: 'slice', record } : { do: 'service', record })
        await runner.harness.clock.advance(1000)
        const mine = ['frontend 10.96.9.9:80/tcp', 'hairpin 10.0.9.9']
        expect(mine.map((id) => runner.harness.kernel.writes.get(id))).toEqual([1, 1])
        // Changes of the view are left out: another node name, or other hints, change these entries.
        for (const step of history) if (step.do !== 'view') await runner.run(step)
        await runner.heal()
        expect(mine.map((id) => runner.harness.kernel.writes.get(id))).toEqual([1, 1])
        await runner.harness.engine.stop()
      }),
      { numRuns: 300 },
    )
  })
})

const sorted = (list: readonly object[]) => list.map((one) => JSON.stringify(one)).sort()
