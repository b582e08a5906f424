// Measures how long a node whose API server is away takes from the start of the process to the first connection that its saved state serves.
//
// Run as root on a quiet machine: npx tsx bench/saved-start.ts [SERVICES...]. docs/health.md has its figures. BENCH_EXECUTABLE names a single
// executable that is measured instead of the bundle.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { clusterIp, NodeNetwork, nodeIp } from '../test/kernel/node-network.ts'
import { extras, web } from '../test/kernel/web-service.ts'
import { WholeProxy } from '../test/kernel/whole-proxy.ts'
import { serveObjects } from '../test/lab/fixed-api.ts'
import { nodeName } from '../test/scenarios/expand.ts'
import { until } from '../test/support/until.ts'
import { nodeFlags, script } from './node-flags.ts'

const rounds = 5
const isVerbose = process.env.BENCH_VERBOSE !== undefined
const sizes = process.argv.length > 2 ? process.argv.slice(2).map(Number) : [1, 1_000]

interface Measured {
  /** Milliseconds from the start of the process until a client gets an answer. */
  readonly ms: number
  /** Milliseconds of CPU that the process used until then. */
  readonly cpuMs: number
}

/** The ticks of a second are 100 on every platform that Linux has. */
function readCpuMs(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? []
  return 10 * (Number(fields[11]) + Number(fields[12]))
}

async function measure(network: NodeNetwork, start: () => Promise<WholeProxy>): Promise<Measured> {
  await network.run('nft flush ruleset')
  const begun = performance.now()
  const proxy = await start()
  try {
    for (;;) {
      if (/^10\.180/.test(await network.ask(clusterIp, 80, 200))) break
      if (performance.now() - begun > 60_000) throw new Error(proxy.log)
      await delay(5)
    }
    return { ms: performance.now() - begun, cpuMs: readCpuMs(proxy.child.pid ?? 0) }
  } finally {
    if (isVerbose) console.log(proxy.log)
    await proxy.stop('SIGKILL')
  }
}

// What is shipped: the bundle with its flags of Node.
execFileSync('npm', ['run', '--silent', 'build'], { cwd: join(import.meta.dirname, '..'), stdio: 'ignore' })
const executable = process.env.BENCH_EXECUTABLE
const command = executable === undefined ? [process.execPath, ...nodeFlags(), script] : [executable, 'proxy']

console.log(`load of the machine: ${loadavg()[0]?.toFixed(1)}\n`)
console.log('| Services | until the first connection, ms, in five runs | CPU time of the proxy until then, ms |')
console.log('| ---: | --- | --- |')
for (const size of sizes) {
  const network = await NodeNetwork.create()
  const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
  // Packets that are not translated end here at once.
  await network.run('ip route add unreachable 172.30.0.0/16')
  const file = join(folder, 'sluice.yaml')
  writeFileSync(file, `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\nstate:\n  directory: ${folder}/state\n`)
  const flags = [`--sluice-config=${file}`, ...(isVerbose ? ['--v=4'] : [])]
  try {
    const api = await serveObjects(network.node, nodeName, nodeIp, [...web().put, ...extras(size).put])
    const start = () => WholeProxy.start({ network, api, mode: 'nftables', flags, command })
    const first = await start()
    await until('the state is saved', () =>
      readFileSync(join(folder, 'state', `${nodeName}.state`), 'utf8').includes('["end"]'),
    )
    await first.stop('SIGKILL')
    api.close()
    const times: Measured[] = []
    for (let round = 0; round < rounds; round++) times.push(await measure(network, start))
    const show = (read: (one: Measured) => number) => times.map((one) => Math.round(read(one))).join(', ')
    console.log(`| ${size} | ${show(({ ms }) => ms)} | ${show(({ cpuMs }) => cpuMs)} |`)
  } finally {
    await network.close()
    rmSync(folder, { recursive: true, force: true })
  }
}
process.exit(0)
