// Reads the metrics of the process and of Node's runtime at each scrape, with the names and help texts that prom-client gives them.
//
// The distribution of the event loop's lag is left out: to measure it, Node wakes the process a hundred times a second, which costs an idle
// node more than all of its changes. The lag at the time of a scrape remains.

import { readdirSync } from 'node:fs'
import { constants } from 'node:perf_hooks'
import { getHeapSpaceStatistics, getHeapStatistics } from 'node:v8'
import { counter, gauge, histogram, type MetricDeclaration } from '../../lib/metric-declaration.ts'
import { MetricsRegistry } from '../registry/metrics-registry.ts'
import { readProcFile } from './process-metrics.ts'

const plain = { stability: '' } as const

/** Metrics that are read from /proc. */
const procDeclarations: readonly MetricDeclaration[] = [
  gauge('process_virtual_memory_bytes', [], 'Virtual memory size in bytes.', plain),
  gauge('process_heap_bytes', [], 'Process heap size in bytes.', plain),
  gauge('process_open_fds', [], 'Number of open file descriptors.', plain),
  gauge('process_max_fds', [], 'Maximum number of open file descriptors.', plain),
]

const describeByType = (what: string): string =>
  `Number of active libuv ${what}s grouped by ${what} type. Every ${what} type is C++ class name.`

const resourcesHelp =
  'Number of active resources that are currently keeping the event loop alive, grouped by async resource type.'

const declareRuntime = (hasProc: boolean): readonly MetricDeclaration[] => [
  counter('process_cpu_user_seconds_total', [], 'Total user CPU time spent in seconds.', plain),
  counter('process_cpu_system_seconds_total', [], 'Total system CPU time spent in seconds.', plain),
  counter('process_cpu_seconds_total', [], 'Total user and system CPU time spent in seconds.', plain),
  gauge('process_start_time_seconds', [], 'Start time of the process since unix epoch in seconds.', plain),
  gauge('process_resident_memory_bytes', [], 'Resident memory size in bytes.', plain),
  ...(hasProc ? procDeclarations : []),
  gauge('nodejs_active_resources', ['type'], resourcesHelp, plain),
  gauge('nodejs_active_resources_total', [], 'Total number of active resources.', plain),
  gauge('nodejs_active_handles', ['type'], describeByType('handle'), plain),
  gauge('nodejs_active_handles_total', [], 'Total number of active handles.', plain),
  gauge('nodejs_active_requests', ['type'], describeByType('request'), plain),
  gauge('nodejs_active_requests_total', [], 'Total number of active requests.', plain),
  gauge('nodejs_heap_size_total_bytes', [], 'Process heap size from Node.js in bytes.', plain),
  gauge('nodejs_heap_size_used_bytes', [], 'Process heap size used from Node.js in bytes.', plain),
  gauge('nodejs_external_memory_bytes', [], 'Node.js external memory size in bytes.', plain),
  ...['total', 'used', 'available'].map((kind) =>
    gauge(`nodejs_heap_space_size_${kind}_bytes`, ['space'], describeSpace(kind), plain),
  ),
  gauge('nodejs_version_info', ['version', 'major', 'minor', 'patch'], 'Node.js version info.', plain),
  histogram('nodejs_gc_duration_seconds', ['kind'], collectionsHelp, { ...plain, buckets: 'COLLECTION' }),
  gauge('nodejs_eventloop_lag_seconds', [], 'Lag of the event loop at the last scrape.', plain),
]

const describeSpace = (kind: string): string => `Process heap space size ${kind} from Node.js in bytes.`

const collectionsHelp = 'Garbage collection duration by kind, one of major, minor, incremental or weakcb.'

/** Returns what writes the text of the metrics. */
export function createRuntimeMetrics(): { text(): string } {
  const limits = readProcFile('limits')
  const registry = new MetricsRegistry(declareRuntime(limits !== ''))
  const maxFiles = Number(/^Max open files +(\d+)/m.exec(limits)?.[1])
  const [major = '', minor = '', patch = ''] = process.version.slice(1).split('.')
  registry.set('nodejs_version_info', { version: process.version, major, minor, patch }, 1)
  registry.set('process_max_fds', {}, maxFiles)
  observeCollections(registry)
  return {
    text() {
      readCpu(registry)
      readMemory(registry)
      readActive(registry)
      measureLag(registry)
      return registry.text()
    },
  }
}

function readCpu(registry: MetricsRegistry): void {
  const { user, system } = process.cpuUsage()
  registry.set('process_cpu_user_seconds_total', {}, user / 1e6)
  registry.set('process_cpu_system_seconds_total', {}, system / 1e6)
  registry.set('process_cpu_seconds_total', {}, (user + system) / 1e6)
  // The time of the start is not known before: a snapshot would keep that of its build.
  registry.set('process_start_time_seconds', {}, Math.round(performance.timeOrigin / 1000))
}

function readMemory(registry: MetricsRegistry): void {
  const heap = getHeapStatistics()
  registry.set('nodejs_heap_size_total_bytes', {}, heap.total_heap_size)
  registry.set('nodejs_heap_size_used_bytes', {}, heap.used_heap_size)
  registry.set('nodejs_external_memory_bytes', {}, heap.external_memory)
  for (const { space_name, ...sizes } of getHeapSpaceStatistics()) {
    const labels = { space: space_name.slice(0, space_name.indexOf('_space')) }
    registry.set('nodejs_heap_space_size_total_bytes', labels, sizes.space_size)
    registry.set('nodejs_heap_space_size_used_bytes', labels, sizes.space_used_size)
    registry.set('nodejs_heap_space_size_available_bytes', labels, sizes.space_available_size)
  }
  if (registry.has('process_open_fds')) readProc(registry)
  else registry.set('process_resident_memory_bytes', {}, process.memoryUsage.rss())
}

/** What cannot be read, because the process has as many open files as it may have, keeps its last value. */
function readProc(registry: MetricsRegistry): void {
  const status = readProcFile('status')
  for (const [name, line] of statusLines) {
    const kilobytes = line.exec(status)?.[1]
    if (kilobytes !== undefined) registry.set(name, {}, Number(kilobytes) * 1024)
  }
  const files = countOpenFiles()
  if (files !== undefined) registry.set('process_open_fds', {}, files)
}

const statusLines = [
  ['process_resident_memory_bytes', /^VmRSS:\s+(\d+)/m],
  ['process_virtual_memory_bytes', /^VmSize:\s+(\d+)/m],
  ['process_heap_bytes', /^VmData:\s+(\d+)/m],
] as const

/** Returns the number without the file by which they are listed; undefined if they cannot be listed. */
function countOpenFiles(): number | undefined {
  try {
    return readdirSync('/proc/self/fd').length - 1
  } catch {
    return undefined
  }
}

/** Node has these functions without documenting them. */
const active = process as unknown as Readonly<Record<'_getActiveHandles' | '_getActiveRequests', () => object[]>>

function readActive(registry: MetricsRegistry): void {
  const nameType = (one: object): string => one.constructor.name
  const record = (what: string, types: readonly string[]) => {
    registry.replace(
      `nodejs_active_${what}`,
      types.map((type) => [{ type }, 1] as const),
    )
    registry.set(`nodejs_active_${what}_total`, {}, types.length)
  }
  record('resources', process.getActiveResourcesInfo())
  record('handles', active._getActiveHandles().map(nameType))
  record('requests', active._getActiveRequests().map(nameType))
}

function measureLag(registry: MetricsRegistry): void {
  const started = performance.now()
  setImmediate(() => registry.set('nodejs_eventloop_lag_seconds', {}, (performance.now() - started) / 1000))
}

const collectionKinds: Readonly<Record<number, string>> = {
  [constants.NODE_PERFORMANCE_GC_MAJOR]: 'major',
  [constants.NODE_PERFORMANCE_GC_MINOR]: 'minor',
  [constants.NODE_PERFORMANCE_GC_INCREMENTAL]: 'incremental',
  [constants.NODE_PERFORMANCE_GC_WEAKCB]: 'weakcb',
}

/** What Node reports of a collection. */
interface CollectionEntry {
  readonly duration: number
  readonly detail: { readonly kind: number }
}

function observeCollections(registry: MetricsRegistry): void {
  const observer = new PerformanceObserver((list) => {
    for (const { duration, detail } of list.getEntries() as unknown as readonly CollectionEntry[]) {
      registry.observe('nodejs_gc_duration_seconds', { kind: collectionKinds[detail.kind] ?? 'other' }, duration / 1000)
    }
  })
  observer.observe({ entryTypes: ['gc'] })
}
