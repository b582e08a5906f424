// Measures what a fleet of proxies makes the API server pay: a real kube-apiserver and etcd, and many nodes that read from it.
//
//   npm run bench:fleet [-- nodes…]             default 100 400
//   npm run bench:fleet -- restarts [nodes]     only what happens when an API server is killed
//
// A simulated node is the real client and the four reflectors of the proxy, without engine and kernel (fleet-nodes.worker.ts). Beside it run
// real kube-proxies, each in a network namespace. Everything is in namespaces that this program makes. CPU and written bytes are those of
// the process kube-apiserver; what a write costs without any node, and what a second costs without a write, are subtracted.

import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { protobufType } from '../src/kube/protobuf/read-body.ts'
import { findBinaries } from '../test/e2e/binaries.ts'
import { enterNamespace } from '../test/lab/entered-namespace.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { FleetCluster, type Sample, writeSteadily } from './fleet-cluster.ts'
import { addBridge, KubeProxies } from './fleet-kube-proxies.ts'
import { SimulatedNodes } from './fleet-nodes.ts'
import { rollingWrites } from './fleet-objects.ts'
import { type FleetCost, type PhaseCost, printCosts, printRestart, printSnapshots } from './fleet-report.ts'
import { measureSnapshots } from './fleet-snapshots.ts'

const services = 300
const kubeProxyCount = 20
const quietMs = 8_000
const words = process.argv.slice(2)
const onlyRestarts = words[0] === 'restarts'
const sizes = words.filter((word) => word !== 'restarts').map(Number)
if (sizes.length === 0) sizes.push(100, 400)
const largest = Math.max(...sizes, kubeProxyCount)

const binaries = await findBinaries(['etcd', 'kube-apiserver', 'kubectl', 'kube-proxy'])
if ('missing' in binaries) {
  console.log(`SKIPPED bench:fleet: ${binaries.missing}`)
  process.exit()
}
// Namespaces and files outlive a process that is interrupted; its child processes do not.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1))
const worker = await bundleProgram(join(import.meta.dirname, 'fleet-nodes.worker.ts'))
const namespace = enterNamespace()
process.once('exit', () => namespace.leave())
let cluster: FleetCluster | undefined
let round = 0
try {
  addBridge()
  report('starting etcd and kube-apiserver')
  const started = await FleetCluster.start(binaries.directory)
  cluster = started
  process.once('exit', () => rmSync(started.directory, { recursive: true, force: true }))
  const bootCpuMs = cluster.sample().cpuMs
  report(`creating ${services} Services of 5 endpoints, one of 1,000, and ${largest} Nodes`)
  await cluster.fill(services, largest)
  const tokens = await cluster.mintTokens(largest)
  await wait(5_000)
  if (!onlyRestarts) await measureCosts(cluster, tokens, binaries.directory)
  await measureRestarts(cluster, tokens, bootCpuMs)
} finally {
  await cluster?.stop()
  worker.remove()
}

function simulate(server: FleetCluster, tokens: readonly string[], contentType: string): SimulatedNodes {
  return new SimulatedNodes(worker.file, server, { tokens, contentType })
}

async function measureCosts(server: FleetCluster, tokens: readonly string[], programs: string): Promise<void> {
  report('measuring writes without any node')
  const nobody = [await measureRunning(server, undefined, 0)]
  const costs: FleetCost[] = []
  const measure = async (name: string, fleet: SimulatedNodes | KubeProxies) => {
    report(`measuring ${name} × ${fleet.count}`)
    const nodes = fleet instanceof SimulatedNodes ? fleet : undefined
    try {
      const start = await measurePhase(server, () => fleet.start())
      await wait(2_000)
      const requests = await server.countRequests()
      const figures = await nodes?.figures()
      const running = await measureRunning(server, nodes, fleet.count)
      costs.push({ name, nodes: fleet.count, start, requests, figures, ...running })
    } finally {
      await fleet.stop()
    }
  }
  const kubeProxies = new KubeProxies(join(programs, 'kube-proxy'), server, tokens.slice(0, kubeProxyCount))
  await kubeProxies.prepare()
  await measure('kube-proxy', kubeProxies)
  await measure('Sluice, JSON', simulate(server, tokens.slice(0, sizes[0]), 'application/json'))
  for (const size of sizes) await measure('Sluice, protobuf', simulate(server, tokens.slice(0, size), protobufType))
  report('measuring writes without any node, again')
  nobody.push(await measureRunning(server, undefined, 0))
  printCosts(costs, nobody, services)
  report('measuring ways to read everything')
  printSnapshots(await measureSnapshots(server, tokens[0] as string))
}

async function measureRestarts(server: FleetCluster, tokens: readonly string[], bootCpuMs: number): Promise<void> {
  const nodes = simulate(server, tokens, protobufType)
  await restartOnly(server, nodes, bootCpuMs).finally(() => nodes.stop())
  const others = simulate(server, tokens, protobufType)
  await restartOneOfTwo(server, others).finally(() => others.stop())
}

/** Quiet seconds, single changes, and a rolling update. */
async function measureRunning(server: FleetCluster, nodes: SimulatedNodes | undefined, count: number) {
  round++
  const settle = async (writes: number) => {
    if (nodes !== undefined) await nodes.awaitDelivered(writes * count)
    else await wait(1_000)
  }
  const quiet = await measurePhase(server, () => wait(quietMs))
  const changes = count > 200 ? 100 : 300
  await nodes?.forget()
  const change = await measurePhase(server, async () => {
    await writeSteadily(changes, 20, (n) => server.changeEndpoint(n % services, 1_000 * round + n))
    await settle(changes)
  })
  await nodes?.forget()
  const rolling = await measurePhase(server, async () => {
    await writeSteadily(rollingWrites, 10, (n) => server.roll(n, round))
    await settle(rollingWrites)
  })
  return { quiet, change: { ...change, writes: changes }, rolling: { ...rolling, writes: rollingWrites } }
}

async function measurePhase(server: FleetCluster, run: () => Promise<void>): Promise<PhaseCost> {
  const before = server.sample()
  await run()
  return subtract(server.sample(), before)
}

function subtract(after: Sample, before: Sample): PhaseCost {
  return {
    ms: after.at - before.at,
    cpuMs: after.cpuMs - before.cpuMs,
    bytes: after.bytes - before.bytes,
    rssMb: after.rssMb - before.rssMb,
  }
}

/** The only API server is killed and comes back: it has forgotten all versions before its start. */
async function restartOnly(server: FleetCluster, nodes: SimulatedNodes, bootCpuMs: number): Promise<void> {
  report(`starting ${nodes.count} nodes`)
  await nodes.start()
  await wait(3_000)
  report('killing the only API server, and starting it again')
  await nodes.forget()
  await server.kill()
  const killed = Date.now()
  await wait(1_000)
  await server.startApiServer()
  const ready = Date.now()
  const requests = await awaitWatches(server, 4 * nodes.count)
  const figures = await nodes.figures()
  const cpu = server.sample().cpuMs - bootCpuMs
  printRestart('the only API server is killed', { killed, ready, requests, figures, cpuMs: cpu, nodes: nodes.count })
}

/** One of two API servers is killed: the other has the history that the watches need. */
async function restartOneOfTwo(server: FleetCluster, nodes: SimulatedNodes): Promise<void> {
  report('starting a second API server on the same port, and all nodes')
  await server.startApiServer()
  await wait(5_000)
  await nodes.start()
  await wait(3_000)
  await nodes.forget()
  const before = await server.countNewest()
  const cpuBefore = server.newestCpuMs()
  report('killing the first of two API servers')
  const killed = Date.now()
  await server.kill()
  const requests = await awaitWatches(server, 4 * nodes.count)
  const figures = await nodes.figures()
  printRestart('one of two API servers is killed', {
    killed,
    ready: killed,
    requests: {
      ...requests,
      lists: requests.lists - before.lists,
      streamedLists: requests.streamedLists - before.streamedLists,
      expired: requests.expired - before.expired,
    },
    figures,
    cpuMs: server.newestCpuMs() - cpuBefore,
    nodes: nodes.count,
  })
}

async function awaitWatches(server: FleetCluster, count: number) {
  for (let second = 0; second < 420; second++) {
    const requests = await server.countRequests()
    if (requests.watches >= count) return requests
    await wait(1_000)
  }
  throw new Error(`the API server has fewer than ${count} watches after seven minutes`)
}

function report(text: string): void {
  process.stderr.write(`${new Date().toISOString().slice(11, 19)} ${text}\n`)
}
