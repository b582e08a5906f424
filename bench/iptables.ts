// Measures iptables mode at scale: the first sync, full syncs, and one changed endpoint, and how much CPU is ours and how much that of
// iptables-restore (`npm run bench:iptables`, as root). It runs in its own network namespace; what exceeds the limit is reported as such.
//
// Ours is all CPU of this process, threads of V8 included, from the moment a sync is due until it is reported: model, planning,
// ledger, text, starting and feeding the programs, reading the output of iptables-save. Starting Node, loading the code and making the
// objects, which an API server would do, are not included. CPU of the programs is that of our children. The first sync is that of a
// process that has just started: nothing is compiled yet, and the heap still grows. For full syncs, changes and readings the median is
// shown. COUNTERS=off measures without counters.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { iptables } from '../src/backend/iptables/backend.ts'
import { Engine } from '../src/engine/engine.ts'
import { SyncJournal, type SyncReport } from '../src/engine/journal.ts'
import { createLogger } from '../src/lib/log.ts'
import { systemClock } from '../src/lib/time.ts'
import { everyAddress, view } from '../test/support/builders.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { nodeFlags } from './node-flags.ts'
import { childrenCpuMs, ownCpuMs } from './process-cost.ts'
import { serviceAt, sliceAt } from './records.ts'

type Flavour = 'legacy' | 'nft'

interface Cost {
  readonly wallMs: number
  /** CPU of this process, and of the programs it ran. */
  readonly ownMs: number
  readonly programsMs: number
}

const fullSyncs = 3
/** With few services V8 still compiles during the first syncs; after this many more the code is warm. */
const warmUp = 5
const small = 1000
const changes = 9
const limitMs = Number(process.env.LIMIT_MS ?? 120_000)
const sizes = (process.env.SIZES ?? '1000,5000,10000').split(',').map(Number)
const isCounting = process.env.COUNTERS !== 'off'
const flavours = (process.env.FLAVOURS ?? 'legacy,nft').split(',') as Flavour[]

/** Creates the namespace and runs this program in it. */
function runInNamespace(flavour: Flavour, size: number, bundle: string): void {
  const name = `ipt-bench-${process.pid}`
  const directory = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
  const ip = (...args: string[]) => spawnSync('ip', args, { stdio: 'inherit' })
  ip('netns', 'add', name)
  try {
    ip('-n', name, 'link', 'set', 'lo', 'up')
    const env = { ...process.env, XTABLES_LOCKFILE: join(directory, 'lock') }
    ip('netns', 'exec', name, `iptables-${flavour}`, '-t', 'mangle', '-N', 'KUBE-KUBELET-CANARY')
    const args = ['netns', 'exec', name, process.execPath, ...nodeFlags(), bundle, flavour, String(size)]
    const { status } = spawnSync('ip', args, { stdio: 'inherit', env, timeout: 3 * limitMs, killSignal: 'SIGKILL' })
    if (status !== 0) row(size, flavour, 'stopped', `over ${(3 * limitMs) / 1000} s`)
  } finally {
    ip('netns', 'del', name)
    rmSync(directory, { recursive: true })
  }
}

async function measureSyncs(flavour: Flavour, size: number): Promise<void> {
  const log = createLogger({
    format: 'text',
    verbosity: 0,
    write: (line) => void (process.env.VERBOSE && process.stderr.write(line)),
  })
  const journal = new SyncJournal({ log })
  let reported: (report: SyncReport) => void = () => {}
  journal.subscribe({ report: (report) => reported(report) })
  const backend = iptables({ syncPeriodMs: 30_000, localhostNodePorts: true, counters: isCounting })
  const engine = new Engine({
    backend,
    families: [4],
    views: () => node,
    settings: { minSyncMs: 0, syncMs: 30_000 },
    clock: systemClock,
    log,
    journal,
  })
  const report = (act: () => void): Promise<SyncReport> =>
    new Promise((resolve) => {
      reported = resolve
      act()
    })
  await engine.start()
  for (let i = 0; i < size; i++) {
    const [service, slice] = [serviceAt(i), sliceAt(i)]
    engine.store.services.put(service.key, service)
    engine.store.slices.put(slice.key, slice)
  }
  const deliver = () => {
    engine.store.services.synced()
    engine.store.slices.synced()
  }
  const show = (what: string, cost: Cost) => row(size, flavour, what, cost)
  const first = await measure(async () => void (await report(deliver)))
  show('first sync', first)
  if (first.wallMs < limitMs) {
    const full = () => engine.requestSync(4, { full: true })
    const fulls: Cost[] = []
    const syncs = size <= small ? fullSyncs + warmUp + fullSyncs : fullSyncs
    for (let i = 0; i < syncs; i++) fulls.push(await measure(async () => void (await report(full))))
    show('full sync', medianOf(fulls.slice(0, fullSyncs)))
    if (size <= small) show('full sync, warm', medianOf(fulls.slice(-fullSyncs)))
    const costs: Cost[] = []
    for (let turn = 1; turn <= changes; turn++) {
      const changed = sliceAt(7, turn)
      costs.push(await measure(async () => void (await report(() => engine.store.slices.put(changed.key, changed)))))
    }
    show('one endpoint changed', medianOf(costs))
    // Chains of the endpoints that are gone are swept meanwhile.
    if (isCounting) show('sweep, in 3 s', await measure(() => new Promise((resolve) => setTimeout(resolve, 3000))))
    const reads: Cost[] = []
    for (let i = 0; i < fullSyncs && isCounting; i++)
      reads.push(await measure(async () => void (await backend.counters?.())))
    if (isCounting) show('reading of counters', medianOf(reads))
    const idle = await measure(() => new Promise((resolve) => setTimeout(resolve, 5000)))
    console.log(
      `${' '.repeat(19)}watching costs ${(idle.ownMs / 5).toFixed(1)} ms CPU per second; ${Math.round(process.memoryUsage().rss / 1e6)} MB resident`,
    )
  } else console.log(`${' '.repeat(19)}further syncs left out: each takes over ${limitMs / 1000} s`)
  await engine.stop()
  process.exit(0)
}

function medianOf(costs: readonly Cost[]): Cost {
  const median = (of: (cost: Cost) => number) => costs.map(of).toSorted((a, b) => a - b)[costs.length >> 1] as number
  return {
    wallMs: median((cost) => cost.wallMs),
    ownMs: median((cost) => cost.ownMs),
    programsMs: median((cost) => cost.programsMs),
  }
}

async function measure(work: () => Promise<void>): Promise<Cost> {
  const own = ownCpuMs()
  const programs = childrenCpuMs()
  const begun = performance.now()
  await work()
  return {
    wallMs: performance.now() - begun,
    ownMs: ownCpuMs() - own,
    programsMs: childrenCpuMs() - programs,
  }
}

function row(size: number, flavour: string, what: string, cost: Cost | string): void {
  const head = `${String(size).padStart(8)}  ${flavour.padEnd(7)}  ${what.padEnd(20)}`
  if (typeof cost === 'string') {
    console.log(`${head} ${cost}`)
    return
  }
  const ms = (value: number, width: number) => `${value.toFixed(0)} ms`.padStart(width)
  const share = cost.programsMs === 0 ? '' : `${((100 * cost.ownMs) / cost.programsMs).toFixed(1)} %`
  console.log(`${head}${ms(cost.wallMs, 9)}${ms(cost.ownMs, 13)}${ms(cost.programsMs, 16)}${share.padStart(15)}`)
}

const node = view({ nodePorts: everyAddress, serviceCidrs: [] })

if (process.argv[2] === undefined) {
  console.log('services  flavour  what                 wall      ours (CPU)  programs (CPU)  ours/programs')
  const { file, remove } = await bundleProgram(fileURLToPath(import.meta.url))
  for (const flavour of flavours) for (const size of sizes) runInNamespace(flavour, size, file)
  remove()
} else await measureSyncs(process.argv[2] as Flavour, Number(process.argv[3]))
