// Flows under a flood, by real packets: the proxy samples and says so, and counts what the kernel dropped while the proxy stood still.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest'
import { describeCoverage } from '../../src/commands/flows/flow-text.ts'
import { AdminClient } from '../../src/http/admin-client.ts'
import type { FlowCoverage, FlowSummary } from '../../src/http/admin-flows.ts'
import { isSampled } from '../../src/sys/flows/flow-events.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { Flood, floodedIp, floodedService, flooderIp } from './flood.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { WholeProxy } from './whole-proxy.ts'

let network: NodeNetwork
let api: FixedApi
let folder: string
let proxy: WholeProxy
let client: AdminClient
let flood: Flood
let watch: ReturnType<typeof follow>

beforeAll(async () => {
  network = await NodeNetwork.create()
  folder = mkdtempSync(join(tmpdir(), 'sluice-flood-'))
  api = await serveObjects(network.node, nodeName, nodeIp, floodedService())
  const env = { SLUICE_ADMIN_SOCKET: join(folder, 'admin.sock') }
  proxy = await WholeProxy.start({ network, api, mode: 'nftables', env })
  flood = await Flood.prepare(network)
  await proxy.waitUntilSynced()
  client = new AdminClient(env.SLUICE_ADMIN_SOCKET)
})

afterAll(async () => {
  flood.close()
  await proxy.stop('SIGKILL')
  api.close()
  await network.close()
  rmSync(folder, { recursive: true, force: true })
})

beforeEach(async () => {
  watch = follow()
  await until('the proxy follows', () => watch.coverages.length > 0)
})

afterEach(() => watch.end())

function follow() {
  const flows: FlowSummary[] = []
  const coverages: FlowCoverage[] = []
  const stop = new AbortController()
  const done = client.followFlows(
    { service: 'ns1/flooded', from: '', verdicts: [], limit: 1000 },
    (event) => void (event.kind === 'flow' ? flows.push(event.flow) : coverages.push(event.coverage)),
    stop.signal,
  )
  done.catch(() => {})
  return {
    flows,
    coverages,
    async end() {
      stop.abort()
      await done
    },
  }
}

const portOf = ({ from }: FlowSummary): number => Number(from.slice(from.lastIndexOf(':') + 1))

/** Floods the service again and again until `condition` holds. */
async function floodUntil(what: string, count: number, condition: () => boolean): Promise<void> {
  const floodOnce = async () => {
    expect((await flood.run(count)).failed).toBe(0)
    return condition()
  }
  await until(what, floodOnce, { limitMs: 60_000 })
}

it('follows a share of a flood, and says how large the share is', async () => {
  expect(watch.coverages[0]).toMatchObject({ sampled: 1, lost: 0, skipped: 0 })
  const largest = () => Math.max(...watch.coverages.map(({ sampled }) => sampled))
  await floodUntil('the flood is sampled', 4_000, () => largest() >= 2)
  expect(describeCoverage(watch.coverages.at(-1) as FlowCoverage)).toMatch(/sampled 1 of \d+\./)
  expect(await proxy.metrics()).toContain('sluice_flow_watchers 1')
  const before = watch.flows.length
  const { made } = await flood.run(2_000)
  await until('flows are shown', () => watch.flows.slice(before).some(({ verdict }) => verdict !== 'open'))
  const shown = new Set(watch.flows.slice(before).map(({ id }) => id))
  expect(shown.size).toBeLessThan(made)
  for (const flow of watch.flows.slice(before)) {
    expect(flow).toMatchObject({ service: 'ns1/flooded:main', to: `${floodedIp}:8081`, endpoint: `${podIps[0]}:8081` })
    expect(flow.from).toMatch(new RegExp(`^${flooderIp}:`))
  }
  // The list is not sampled: it is read when someone asks.
  const { flows: listed } = await client.flows({ service: 'ns1/flooded', from: '', verdicts: [], limit: 10_000 })
  expect(listed.some((flow) => !isSampled(portOf(flow), 2))).toBe(true)
})

it('counts the notifications that the kernel dropped while the proxy stood still, and follows the next flows', async () => {
  const lostMetric = async () =>
    Number(/^sluice_flow_events_lost_total (\d+)/m.exec(await proxy.metrics())?.[1] ?? Number.NaN)
  expect(await lostMetric()).toBe(0)
  proxy.child.kill('SIGSTOP')
  // Three notifications per connection fill the receive buffer of the proxy (8 MB, as the kernel counts) several times.
  const figures = await flood.run(10_000)
  proxy.child.kill('SIGCONT')
  expect(figures.failed).toBe(0)
  const coverage = await until('the loss is reported', () => watch.coverages.find(({ lost }) => lost > 0))
  expect(describeCoverage(coverage)).toMatch(/The kernel dropped notifications \d+ times?: some flows are missing\./)
  expect(await lostMetric()).toBeGreaterThan(0)
  const before = watch.flows.length
  await floodUntil('new flows are shown', 1_000, () =>
    watch.flows.slice(before).some(({ verdict }) => verdict !== 'open'),
  )
})
