// Prints the figures of bench/fleet.ts, per node, and what they make of larger clusters.

import type { RequestCounts } from './fleet-cluster.ts'
import type { NodeFigures } from './fleet-nodes.ts'
import type { SnapshotCost } from './fleet-snapshots.ts'

export interface PhaseCost {
  readonly ms: number
  readonly cpuMs: number
  readonly bytes: number
  readonly rssMb: number
}

interface WritesCost extends PhaseCost {
  readonly writes: number
}

export interface RunningCost {
  readonly quiet: PhaseCost
  readonly change: WritesCost
  readonly rolling: WritesCost
}

export interface FleetCost extends RunningCost {
  readonly name: string
  readonly nodes: number
  readonly start: PhaseCost
  readonly requests: RequestCounts
  /** Absent for real kube-proxies. */
  readonly figures: NodeFigures | undefined
}

export interface Restart {
  readonly killed: number
  readonly ready: number
  readonly requests: RequestCounts
  readonly figures: NodeFigures
  readonly cpuMs: number
  readonly nodes: number
}

const extrapolated = [5_000, 15_000]

/** What the phase cost beyond the quiet time of the same length. */
const busyCpuMs = (phase: PhaseCost, quiet: PhaseCost): number => phase.cpuMs - (quiet.cpuMs / quiet.ms) * phase.ms
const busyBytes = (phase: PhaseCost, quiet: PhaseCost): number => phase.bytes - (quiet.bytes / quiet.ms) * phase.ms

/** CPU in µs and bytes for one write and one node, without what the write costs with no node at all. */
function perDelivery(cost: FleetCost, nobody: RunningCost, phase: 'change' | 'rolling') {
  const share = (read: (phase: PhaseCost, quiet: PhaseCost) => number) =>
    (read(cost[phase], cost.quiet) / cost[phase].writes - read(nobody[phase], nobody.quiet) / nobody[phase].writes) /
    cost.nodes
  return { micros: 1000 * share(busyCpuMs), bytes: share(busyBytes) }
}

const perNodeStart = (cost: FleetCost, nobody: RunningCost) => ({
  cpuMs: busyCpuMs(cost.start, nobody.quiet) / cost.nodes,
  bytes: busyBytes(cost.start, nobody.quiet) / cost.nodes,
})

/** The same phases, measured several times without nodes, as one. */
function add(all: readonly RunningCost[]): RunningCost {
  const sum = <P>(phases: readonly P[], read: (phase: P) => number) =>
    phases.reduce((total, phase) => total + read(phase), 0)
  const join = (phases: readonly PhaseCost[]) => ({
    ms: sum(phases, ({ ms }) => ms),
    cpuMs: sum(phases, ({ cpuMs }) => cpuMs),
    bytes: sum(phases, ({ bytes }) => bytes),
    rssMb: sum(phases, ({ rssMb }) => rssMb),
  })
  const joinWrites = (phases: readonly WritesCost[]) => ({ ...join(phases), writes: sum(phases, (one) => one.writes) })
  return {
    quiet: join(all.map(({ quiet }) => quiet)),
    change: joinWrites(all.map(({ change }) => change)),
    rolling: joinWrites(all.map(({ rolling }) => rolling)),
  }
}

export function printCosts(costs: readonly FleetCost[], idle: readonly RunningCost[], services: number): void {
  const nobody = add(idle)
  const objects = `${services} Services of 5 endpoints and one of 1,000`
  console.log(`\nWhat one node makes the API server pay; ${objects}`)
  const header = costs.map(({ name, nodes }) => `${name} × ${nodes}`)
  const row = (title: string, show: (cost: FleetCost) => string) => printRow(title, costs.map(show))
  printRow('', header)
  row('start: CPU ms per node', (cost) => perNodeStart(cost, nobody).cpuMs.toFixed(1))
  row('start: KB per node', (cost) => kilo(perNodeStart(cost, nobody).bytes))
  row('start: until the last node has all, s', (cost) => (cost.start.ms / 1000).toFixed(1))
  row('memory of the API server, KB per node', (cost) => ((cost.start.rssMb * 1024) / cost.nodes).toFixed(0))
  row('quiet: CPU µs per second and node', (cost) =>
    ((1e6 * (cost.quiet.cpuMs / cost.quiet.ms - nobody.quiet.cpuMs / nobody.quiet.ms)) / cost.nodes).toFixed(0),
  )
  row('one change: CPU µs per node', (cost) => perDelivery(cost, nobody, 'change').micros.toFixed(1))
  row('one change: bytes per node', (cost) => perDelivery(cost, nobody, 'change').bytes.toFixed(0))
  row('slice of 100: CPU µs per node', (cost) => perDelivery(cost, nobody, 'rolling').micros.toFixed(1))
  row('slice of 100: bytes per node', (cost) => perDelivery(cost, nobody, 'rolling').bytes.toFixed(0))
  row('rolling update of 1,000: MB per node', (cost) =>
    mega(perDelivery(cost, nobody, 'rolling').bytes * cost.rolling.writes),
  )
  row('watches open / lists / streamed lists', ({ requests }) =>
    [requests.watches, requests.lists, requests.streamedLists].join(' / '),
  )
  row('start: refused / asked to come again', ({ figures }) => (figures === undefined ? '-' : countRefused(figures)))
  const writeCost = (one: RunningCost) => (busyCpuMs(one.change, one.quiet) / one.change.writes).toFixed(2)
  const share = (100 * nobody.quiet.cpuMs) / nobody.quiet.ms
  console.log(`Without any node: ${share.toFixed(1)} % of a CPU; CPU ms per write: ${idle.map(writeCost).join(', ')}`)
  for (const nodes of extrapolated) printExtrapolated(costs, nobody, nodes)
}

function countRefused({ failed, retried }: NodeFigures): string {
  const refused = Object.values(failed).reduce((sum, count) => sum + count, 0)
  return `${refused} / ${retried}`
}

function printExtrapolated(costs: readonly FleetCost[], nobody: RunningCost, nodes: number): void {
  console.log(`\n${nodes} nodes: the figures above times ${nodes}`)
  printRow(
    '',
    costs.map(({ name, nodes: measured }) => `${name} × ${measured}`),
  )
  const row = (title: string, show: (cost: FleetCost) => string) => printRow(title, costs.map(show))
  row('all start at once: CPU s', (cost) => ((perNodeStart(cost, nobody).cpuMs * nodes) / 1000).toFixed(0))
  row('all start at once: GB', (cost) => giga(perNodeStart(cost, nobody).bytes * nodes))
  row('one change: CPU ms', (cost) => ((perDelivery(cost, nobody, 'change').micros * nodes) / 1000).toFixed(0))
  row('one change: MB', (cost) => mega(perDelivery(cost, nobody, 'change').bytes * nodes))
  row('rolling update of 1,000: CPU s', (cost) =>
    ((perDelivery(cost, nobody, 'rolling').micros * cost.rolling.writes * nodes) / 1e6).toFixed(0),
  )
  row('rolling update of 1,000: GB', (cost) =>
    giga(perDelivery(cost, nobody, 'rolling').bytes * cost.rolling.writes * nodes),
  )
  row('memory of the API server, GB', (cost) => (((cost.start.rssMb / cost.nodes) * nodes) / 1024).toFixed(1))
}

export function printRestart(title: string, { killed, ready, requests, figures, cpuMs, nodes }: Restart): void {
  const { accepted } = figures
  const after = (share: number) => accepted[Math.floor((accepted.length - 1) * share)] as number
  const seconds = (at: number) => `${((at - killed) / 1000).toFixed(1)} s`
  console.log(`\n${nodes} nodes, ${title}`)
  console.log(
    `ready again after ${seconds(ready)}; CPU of the API server for all nodes: ${(cpuMs / 1000).toFixed(1)} s`,
  )
  console.log(
    `watches accepted: ${accepted.length}, the first after ${seconds(after(0))}, half after ${seconds(after(0.5))}, ` +
      `the last after ${seconds(after(1))}`,
  )
  const failures = Object.entries(figures.failed).map(([code, count]) => `${count} with ${code}`)
  console.log(`attempts that failed: ${failures.join(', ') || 'none'}; ${figures.retried} repeated as the server asked`)
  console.log(
    `counted by the API server: ${requests.watches} watches open, ${requests.lists} lists, ` +
      `${requests.streamedLists} streamed lists, ${requests.expired} refused as too old`,
  )
  console.log(`accepted in each second since: ${countPerSecond(accepted, killed).join(' ')}`)
}

function countPerSecond(times: readonly number[], from: number): readonly number[] {
  const counts: number[] = []
  for (const at of times) {
    const second = Math.max(0, Math.floor((at - from) / 1000))
    counts[second] = (counts[second] ?? 0) + 1
  }
  return Array.from(counts, (count) => count ?? 0)
}

export function printSnapshots(costs: readonly SnapshotCost[]): void {
  console.log('\nOne snapshot of all EndpointSlices, on a new connection')
  printRow('', ['CPU ms', 'KB', 'ms until it is read'])
  for (const { name, cpuMs, bytes, wallMs } of costs) {
    printRow(name, [cpuMs.toFixed(1), kilo(bytes), wallMs.toFixed(0)])
  }
}

const kilo = (bytes: number): string => (bytes / 1024).toFixed(0)
const mega = (bytes: number): string => (bytes / 2 ** 20).toFixed(2)
const giga = (bytes: number): string => (bytes / 2 ** 30).toFixed(2)

function printRow(title: string, cells: readonly string[]): void {
  console.log(title.padEnd(42) + cells.map((cell) => cell.padStart(25)).join(''))
}
