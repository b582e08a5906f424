// Makes endpoints and a node fail under load, and counts the connections that fail or are slow: the real kube-proxy beside Sluice, in one run.
//
//   npm run bench:failover [-- nftables|iptables [row…]]      rows by number from 0; all by default
//
// Run as root. The API server says nothing about the failures meanwhile, as in the first 40 seconds of a dead node. docs/health.md has the
// figures. BENCH_SECONDS is the time for which each failure is watched.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { allPods, nodeIp, RemoteNodes } from '../test/kernel/remote-nodes.ts'
import { hasKubeProxy, WholeProxy, type WholeProxyOptions } from '../test/kernel/whole-proxy.ts'
import { serveObjects } from '../test/lab/fixed-api.ts'
import { nodeName } from '../test/scenarios/expand.ts'
import { dialEveryMs, type FailoverResult, limitMs, measureFailure } from './failover-run.ts'

const watchMs = Number(process.env.BENCH_SECONDS ?? 20) * 1000
const [mode = 'nftables', ...rows] = process.argv.slice(2)
const victim = allPods[0] as string

interface Fault {
  readonly name: string
  make(network: RemoteNodes): Promise<unknown> | unknown
  heal(network: RemoteNodes): Promise<unknown> | unknown
}

const faults: readonly Fault[] = [
  {
    name: "an endpoint's link goes down",
    make: (network) => network.setLink(victim, 'down'),
    heal: (network) => network.setLink(victim, 'up'),
  },
  {
    name: 'a process accepts and never answers',
    make: (network) => network.signal(victim, 'SIGSTOP'),
    heal: (network) => network.signal(victim, 'SIGCONT'),
  },
  {
    name: 'a process is killed (connections are refused)',
    make: (network) => network.signal(victim, 'SIGKILL'),
    heal: (network) => network.startProcess(victim),
  },
  {
    name: 'packets are dropped one way, from the endpoint',
    make: (network) =>
      network.runInPod(
        victim,
        'nft "add table ip f; add chain ip f c { type filter hook output priority 0; policy drop; }"',
      ),
    heal: (network) => network.runInPod(victim, 'nft delete table ip f'),
  },
  {
    name: 'a node is cut off, with 3 of 6 endpoints',
    make: (network) => network.cutNode(0, 'down'),
    heal: (network) => network.cutNode(0, 'up'),
  },
]

interface Contender {
  readonly name: string
  readonly program?: WholeProxyOptions['program']
  readonly annotations?: Readonly<Record<string, string>>
}

const ejection = { 'sluice/outlier-ejection': 'on' }
const probe = { 'sluice/probe': 'http:/ interval=1s timeout=500ms failures=2' }
const contenders: readonly Contender[] = [
  ...(hasKubeProxy ? [{ name: 'kube-proxy', program: 'kube-proxy' as const }] : []),
  { name: 'Sluice, nothing set', annotations: {} },
  { name: 'Sluice, ejection', annotations: ejection },
  { name: 'Sluice, ejection and probes', annotations: { ...ejection, ...probe } },
]

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
const network = await RemoteNodes.create()
try {
  console.log(`load of the machine: ${loadavg()[0]?.toFixed(1)}; ${mode} mode; a connection every ${dialEveryMs} ms,`)
  console.log(`6 endpoints, ${limitMs / 1000} s until a client gives up, watched for ${watchMs / 1000} s\n`)
  console.log('| failure | proxy | connections | failed | slow (over 1 s) | seconds until clean |')
  console.log('| --- | --- | ---: | ---: | ---: | ---: |')
  for (const [i, fault] of faults.entries()) {
    if (rows.length > 0 && !rows.includes(String(i))) continue
    for (const contender of contenders) show(fault, contender, await measure(fault, contender))
  }
} finally {
  network.close()
  rmSync(folder, { recursive: true, force: true })
}
process.exit(0)

async function measure(fault: Fault, { program = 'ours', annotations = {} }: Contender): Promise<FailoverResult> {
  const api = await serveObjects(network.node, nodeName, nodeIp, RemoteNodes.objects(annotations))
  const flags: string[] = []
  if (program === 'ours') {
    const file = join(folder, 'sluice.yaml')
    writeFileSync(file, 'apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\nstate:\n  directory: ""\n')
    flags.push(`--sluice-config=${file}`)
  }
  const proxy = await WholeProxy.start({ network, api, mode: mode as WholeProxyOptions['mode'], program, flags })
  try {
    await proxy.waitUntilSynced()
    const result = await measureFailure(network, () => fault.make(network), watchMs)
    if (process.env.BENCH_VERBOSE !== undefined) console.log(proxy.log)
    return result
  } finally {
    await fault.heal(network)
    await proxy.stop('SIGKILL')
    api.close()
    await network.node.exec('sh', ['-c', 'nft flush ruleset; conntrack -F'])
  }
}

function show({ name: fault }: Fault, { name }: Contender, result: FailoverResult): void {
  const { made, failed, slow, cleanAfterS, noise } = result
  const clean = cleanAfterS?.toFixed(1) ?? `not in ${watchMs / 1000}`
  console.log(`| ${fault} | ${name} | ${made} | ${failed} | ${slow} | ${clean} |`)
  if (noise > 0) console.log(`(${noise} connections failed or were slow before the failure)`)
}
