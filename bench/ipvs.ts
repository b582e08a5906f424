// How long an initial sync and one change take in mode ipvs, at 1,000, 5,000 and 10,000 services with 5 endpoints each. Runs in a network
// namespace of its own; `npm run bench:ipvs` takes it into a VM where the kernel has no IPVS.

import { execFileSync } from 'node:child_process'
import { constants } from 'node:fs'
import { release } from 'node:os'
import { ipvs } from '../src/backend/ipvs/backend.ts'
import { cleanupIpvs } from '../src/backend/ipvs/cleanup.ts'
import { Engine } from '../src/engine/engine.ts'
import { SyncJournal, type SyncReport } from '../src/engine/journal.ts'
import { silentLogger } from '../src/lib/log.ts'
import { systemClock } from '../src/lib/time.ts'
import { makeNodeView } from '../src/model/node.ts'
import type { ServiceRecord, SliceRecord } from '../src/model/types.ts'
import * as libc from '../src/sys/libc.ts'
import { type Calibration, calibrate } from './calibrate.ts'

const endpointsEach = 5
const sizes = process.argv.slice(2).map(Number)
const changes = 50

const view = makeNodeView(
  {
    name: 'here',
    zone: '',
    ips: { 4: '192.168.0.2', 6: '::1', primary: 4 },
    nodePortAddresses: ['192.168.0.2/32'],
    interfaceAddresses: ['192.168.0.2'],
    detectLocal: {
      mode: 'ClusterCIDR',
      clusterCidrs: ['10.0.0.0/8'],
      podCidrs: [],
      bridgeInterface: '',
      interfaceNamePrefix: '',
    },
    masqueradeAll: false,
    masqueradeBit: 14,
    serviceCidrs: [],
    externalIps: true,
  },
  4,
)

const serviceAt = (i: number): ServiceRecord => ({
  key: `ns/s${i}`,
  uid: '',
  created: i,
  type: 'ClusterIP',
  clusterIps: [`172.${16 + (i >> 16)}.${(i >> 8) & 255}.${i & 255}`],
  ports: [{ name: '', protocol: 'tcp', port: 80, nodePort: 0 }],
  externalIps: [],
  loadBalancerIps: [],
  sourceRanges: [],
  externalPolicy: 'Cluster',
  internalPolicy: 'Cluster',
  affinitySeconds: 0,
  healthCheckNodePort: 0,
})

const sliceAt = (i: number, generation = 0): SliceRecord => ({
  key: `ns/s${i}-a`,
  service: `ns/s${i}`,
  family: 4,
  ports: [{ name: '', protocol: 'tcp', port: 8080 }],
  endpoints: Array.from({ length: endpointsEach }, (_, n) => ({
    ip: `10.${(n === 0 ? generation : n) & 255}.${(i >> 8) & 255}.${i & 255}`,
    node: 'elsewhere',
    ready: true,
    serving: true,
    terminating: false,
    zoneHints: [],
    nodeHints: [],
  })),
  triggered: 0,
})

/** The thread moves into a namespace; programs that it starts come along. */
function isolate(): void {
  const name = `sluice-bench-${process.pid}`
  execFileSync('ip', ['netns', 'add', name])
  process.once('exit', () => execFileSync('ip', ['netns', 'del', name]))
  const fd = libc.open(`/run/netns/${name}`, constants.O_RDONLY)
  if (libc.setns(fd, libc.CLONE_NEWNET) < 0) throw new Error('cannot enter the namespace')
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
}

async function measure(services: number): Promise<void> {
  const backend = ipvs({
    syncPeriodMs: 3_600_000,
    ipvs: { scheduler: 'rr', excludeCidrs: [], strictArp: false, tcpTimeoutMs: 0, tcpFinTimeoutMs: 0, udpTimeoutMs: 0 },
  })
  await backend.prepare(view, silentLogger)
  const journal = new SyncJournal({ log: silentLogger })
  const engine = new Engine({
    backend,
    families: [4],
    views: () => view,
    settings: { minSyncMs: 0, syncMs: 3_600_000 },
    clock: systemClock,
    log: silentLogger,
    journal,
  })
  const reports: SyncReport[] = []
  let told = () => {}
  journal.subscribe({
    report(report) {
      reports.push(report)
      told()
    },
  })
  const next = (): Promise<SyncReport> =>
    new Promise((resolve, reject) => {
      told = () => {
        const report = reports.at(-1) as SyncReport
        if (report.ok) resolve(report)
        else reject(report.error)
      }
    })
  await engine.start()
  for (let i = 0; i < services; i++) {
    engine.store.services.put(`ns/s${i}`, serviceAt(i))
    engine.store.slices.put(`ns/s${i}-a`, sliceAt(i))
  }
  const first = next()
  const cpu = process.cpuUsage()
  engine.store.services.synced()
  engine.store.slices.synced()
  const initial = await first
  const used = process.cpuUsage(cpu)
  const changed = await change(engine.store.slices, next)
  await engine.stop()
  const read = await readAll(backend)
  const seconds = (microseconds: number) => (microseconds / 1e6).toFixed(2)
  const cells = [
    `${services} x ${endpointsEach}`,
    (initial.durationMs / 1000).toFixed(2),
    `${seconds(used.user)} + ${seconds(used.system)}`,
    initial.figures.ipvs_messages,
    changed.p50,
    changed.p95,
    changed.cpu,
    changed.messages,
    read,
  ]
  console.log(`| ${cells.join(' | ')} |`)
  await cleanupIpvs(silentLogger)
}

/** One endpoint of one service moves, again and again; milliseconds. */
async function change(slices: Engine['store']['slices'], next: () => Promise<SyncReport>) {
  const times: number[] = []
  let messages = 0
  const begun = process.cpuUsage()
  for (let n = 1; n <= changes; n++) {
    const done = next()
    const start = performance.now()
    slices.put('ns/s7-a', sliceAt(7, n + 10))
    const report = await done
    times.push(performance.now() - start)
    messages = Math.max(messages, report.figures.ipvs_messages ?? 0)
  }
  const { user, system } = process.cpuUsage(begun)
  times.sort((a, b) => a - b)
  const p = (share: number) => (times[Math.floor(times.length * share)] as number).toFixed(2)
  return { p50: p(0.5), p95: p(0.95), cpu: ((user + system) / 1000 / changes).toFixed(2), messages }
}

/** What comparing everything with the kernel takes; seconds of CPU. */
async function readAll(backend: ReturnType<typeof ipvs>): Promise<string> {
  const context = { family: 4, node: view, log: silentLogger, clock: systemClock, onDrift: () => {} } as const
  const target = await backend.open(context)
  const begun = process.cpuUsage()
  await target.observe(new AbortController().signal)
  const { user, system } = process.cpuUsage(begun)
  await target.close()
  return ((user + system) / 1e6).toFixed(2)
}

isolate()
const inVm = process.env.SLUICE_IN_VM === '1'
console.log(`Linux ${release()}, Node ${process.version}${inVm ? ', in a VM' : ''}`)
if (process.env.SLUICE_BENCH_HOST !== undefined && inVm) {
  const host = JSON.parse(process.env.SLUICE_BENCH_HOST) as Calibration
  const here = calibrate()
  const times = (of: keyof Calibration) =>
    `${here[of]} ms here, ${host[of]} ms outside: ${(here[of] / host[of]).toFixed(1)} times`
  console.log(`Calibration, CPU time of fixed work: script ${times('script')}; system calls ${times('calls')} as slow.`)
}
const heads = ['services', 'initial sync, s', 'its CPU, user + system, s', 'IPVS messages', 'one change p50, ms', 'p95']
heads.push('its CPU', 'IPVS messages', 'read everything, CPU s')
console.log(`\n| ${heads.join(' | ')} |\n|${heads.map(() => '---').join('|')}|`)
for (const size of sizes.length > 0 ? sizes : [1000, 5000, 10_000]) await measure(size)
process.exit(0)
