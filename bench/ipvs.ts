// Measures the initial sync and one change in ipvs mode, with 1,000, 5,000 and 10,000 services of 5 endpoints each. It runs in its own
// network namespace; `npm run bench:ipvs` runs it in a VM if the kernel has no IPVS.

import { execFileSync } from 'node:child_process'
import { constants } from 'node:fs'
import { release } from 'node:os'
import { ipvs } from '../src/backend/ipvs/backend.ts'
import { cleanupIpvs } from '../src/backend/ipvs/cleanup.ts'
import { Engine } from '../src/engine/engine.ts'
import { SyncJournal, type SyncReport } from '../src/engine/journal.ts'
import { silentLogger } from '../src/lib/log.ts'
import { systemClock } from '../src/lib/time.ts'
import * as libc from '../src/sys/libc.ts'
import { view } from '../test/support/builders.ts'
import { type Calibration, calibrate } from './calibrate.ts'
import { endpointsEach, serviceAt, sliceAt } from './records.ts'

const sizes = process.argv.slice(2).map(Number)
const changes = 50

const node = view({ serviceCidrs: [] })

/** Moves this thread into a new network namespace; programs that it starts are there too. */
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
    counters: true,
    ipvs: { scheduler: 'rr', excludeCidrs: [], strictArp: false, tcpTimeoutMs: 0, tcpFinTimeoutMs: 0, udpTimeoutMs: 0 },
  })
  await backend.prepare(node, silentLogger)
  const journal = new SyncJournal({ log: silentLogger })
  const engine = new Engine({
    backend,
    families: [4],
    views: () => node,
    settings: { minSyncMs: 0, syncMs: 3_600_000 },
    clock: systemClock,
    log: silentLogger,
    journal,
  })
  const reports: SyncReport[] = []
  let notify = () => {}
  journal.subscribe({
    report(report) {
      reports.push(report)
      notify()
    },
  })
  const next = (): Promise<SyncReport> =>
    new Promise((resolve, reject) => {
      notify = () => {
        const report = reports.at(-1) as SyncReport
        if (report.ok) resolve(report)
        else reject(report.error)
      }
    })
  await engine.start()
  for (let i = 0; i < services; i++) {
    const [service, slice] = [serviceAt(i), sliceAt(i)]
    engine.store.services.put(service.key, service)
    engine.store.slices.put(slice.key, slice)
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

/** Moves one endpoint of one service repeatedly. Returns times in ms. */
async function change(slices: Engine['store']['slices'], next: () => Promise<SyncReport>) {
  const times: number[] = []
  let messages = 0
  const begun = process.cpuUsage()
  for (let n = 1; n <= changes; n++) {
    const changed = sliceAt(7, n)
    const done = next()
    const start = performance.now()
    slices.put(changed.key, changed)
    const report = await done
    times.push(performance.now() - start)
    messages = Math.max(messages, report.figures.ipvs_messages ?? 0)
  }
  const { user, system } = process.cpuUsage(begun)
  times.sort((a, b) => a - b)
  const p = (share: number) => (times[Math.floor(times.length * share)] as number).toFixed(2)
  return { p50: p(0.5), p95: p(0.95), cpu: ((user + system) / 1000 / changes).toFixed(2), messages }
}

/** Returns the CPU of comparing everything with the kernel, in seconds. */
async function readAll(backend: ReturnType<typeof ipvs>): Promise<string> {
  const context = { family: 4, node, log: silentLogger, clock: systemClock, onDrift: () => {} } as const
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
