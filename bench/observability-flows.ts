// Measures what following flows costs at 5,000 new connections per second: the CPU of the proxy, and what connections per second are left.

import { mkdtempSync, rmSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { AdminClient } from '../src/http/admin-client.ts'
import type { FlowEvent, FlowQuery } from '../src/http/admin-flows.ts'
import { Flood, type FloodFigures, floodedService } from '../test/kernel/flood.ts'
import { NodeNetwork, nodeIp } from '../test/kernel/node-network.ts'
import { extras } from '../test/kernel/web-service.ts'
import { WholeProxy } from '../test/kernel/whole-proxy.ts'
import { serveObjects } from '../test/lab/fixed-api.ts'
import { nodeName } from '../test/scenarios/expand.ts'
import { cpuMs, waitUntilIdle } from './process-cost.ts'

const rate = 5_000
const seconds = Number(process.env.BENCH_SECONDS ?? 10)
const rounds = Number(process.env.ROUNDS ?? 4)
const services = 1_000
const all: FlowQuery = { service: '', from: '', verdicts: [], limit: 1_000 }

interface Bench {
  readonly flood: Flood
  readonly socket: string
  readonly pid: number
}

export async function measureFlows(): Promise<readonly string[]> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
  const network = await NodeNetwork.create()
  const api = await serveObjects(network.node, nodeName, nodeIp, [...floodedService(), ...extras(services).put])
  const socket = join(folder, 'proxy.sock')
  const proxy = await WholeProxy.start({ network, api, mode: 'nftables', env: { SLUICE_ADMIN_SOCKET: socket } })
  const flood = await Flood.prepare(network)
  try {
    await proxy.waitUntilSynced()
    await flood.run(2_000)
    return await measureAll({ flood, socket, pid: proxy.child.pid as number })
  } finally {
    flood.close()
    await proxy.stop('SIGKILL')
    api.close()
    await network.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

async function measureAll(bench: Bench): Promise<readonly string[]> {
  const [load = 0] = loadavg()
  const lines = [
    `${services} services, nftables; ${rate} connections per second for ${seconds} s each; load of the machine at the start ${load.toFixed(1)}`,
    '',
    '| at a steady rate | CPU of the proxy, of one core | connections per second | median connection | flows shown |',
    '| --- | --- | --- | --- | --- |',
    await measureQuiet(bench, 0),
    await measureQuiet(bench, 1),
    await measurePaced(bench, 0),
    await measurePaced(bench, 1),
    await measurePaced(bench, 5),
    '',
    ...(await measureFastest(bench)),
  ]
  return lines
}

const name = (watchers: number): string =>
  ['nobody follows', 'one follows'][watchers] ?? `${watchers} follow at the same time`

/** Runs the work while so many follow flows; returns the share of one core that the proxy used. */
async function measureCpu<T>({ socket, pid }: Bench, watchers: number, work: () => Promise<T>) {
  const watching = Array.from({ length: watchers }, () => follow(socket))
  await Promise.all(watching.map(({ begun }) => begun))
  await waitUntilIdle(pid)
  const before = { cpu: cpuMs(pid), at: performance.now() }
  const result = await work()
  const cpu = (cpuMs(pid) - before.cpu) / (performance.now() - before.at)
  for (const { stop } of watching) stop()
  return { result, cpu: `${(cpu * 100).toFixed(1)} %`, seen: watching[0]?.seen ?? { flows: 0, sampled: 1, lost: 0 } }
}

async function measureQuiet(bench: Bench, watchers: number): Promise<string> {
  const { cpu } = await measureCpu(bench, watchers, () => wait(seconds * 1000))
  return `| no connections, ${name(watchers)} | ${cpu} | – | – | – |`
}

async function measurePaced(bench: Bench, watchers: number): Promise<string> {
  const { result, cpu, seen } = await measureCpu(bench, watchers, () => bench.flood.run(rate * seconds, rate))
  checkAll(result)
  const { perSecond, p50 } = result
  const shown = watchers === 0 ? '–' : `${seen.flows}, down to 1 in ${seen.sampled}; lost ${seen.lost} times`
  return `| ${name(watchers)} | ${cpu} | ${perSecond.toFixed(0)} | ${p50.toFixed(0)} µs | ${shown} |`
}

/** As many connections as one client can make, by turns, so that a slow phase of the machine meets both. */
async function measureFastest(bench: Bench): Promise<readonly string[]> {
  const figures: [number[], number[]] = [[], []]
  const shares: [string[], string[]] = [[], []]
  for (let i = 0; i < rounds; i++) {
    for (const watchers of i % 2 === 0 ? ([0, 1] as const) : ([1, 0] as const)) {
      const { result, cpu } = await measureCpu(bench, watchers, () => bench.flood.run(20_000))
      checkAll(result)
      figures[watchers].push(1e6 / result.p50)
      shares[watchers].push(cpu)
    }
  }
  const row = (watchers: 0 | 1) =>
    `| ${name(watchers)} | ${median(figures[watchers]).toFixed(0)} | ${Math.min(...figures[watchers]).toFixed(0)} to ${Math.max(...figures[watchers]).toFixed(0)} | ${shares[watchers].join(', ')} |`
  return [
    '| as fast as one client can | connections per second (median of rounds, from the median connection of each) | range | CPU of the proxy |',
    '| --- | --- | --- | --- |',
    row(0),
    row(1),
    '',
    `Difference of the medians: ${((median(figures[1]) / median(figures[0]) - 1) * 100).toFixed(1)} %, ${rounds} rounds of 20,000 connections each.`,
  ]
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1] as number

function checkAll({ failed, first }: FloodFigures): void {
  if (failed > 0) throw new Error(`${failed} connections failed: ${first}`)
}

/** Follows all flows as `sluice flows --follow` does. */
function follow(socket: string) {
  const abort = new AbortController()
  const seen = { flows: 0, sampled: 1, lost: 0 }
  let begin = () => {}
  const begun = new Promise<void>((resolve) => {
    begin = resolve
  })
  const show = (event: FlowEvent) => {
    if (event.kind === 'flow') seen.flows++
    else {
      seen.sampled = Math.max(seen.sampled, event.coverage.sampled)
      seen.lost = event.coverage.lost
      begin()
    }
  }
  new AdminClient(socket).followFlows(all, show, abort.signal).catch(() => {})
  return { begun, seen, stop: () => abort.abort() }
}
