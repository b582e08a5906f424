// Compares the metrics of the process with those of prom-client, from which their names and help texts come.

import { collectDefaultMetrics, Registry } from 'prom-client'
import { expect, it } from 'vitest'
import { createRuntimeMetrics } from '../../src/http/feeds/runtime-metrics.ts'

const isLag = (line: string): boolean => line.includes(' nodejs_eventloop_lag_')

const readComments = (text: string): readonly string[] =>
  text.split('\n').filter((line) => line.startsWith('# ') && !isLag(line))

const readValue = (text: string, series: string): number =>
  Number(
    text
      .split('\n')
      .find((line) => line.startsWith(`${series} `))
      ?.slice(series.length + 1),
  )

it('has the metrics of prom-client in their order, and of the lag one alone', async () => {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: 2 ** 31 - 1 })
  const text = createRuntimeMetrics().text()
  expect(readComments(text)).toEqual(readComments(await registry.metrics()))
  expect(text.split('\n').filter(isLag)).toEqual([
    '# HELP nodejs_eventloop_lag_seconds Lag of the event loop at the last scrape.',
    '# TYPE nodejs_eventloop_lag_seconds gauge',
  ])
})

it.each([
  'process_start_time_seconds',
  'process_resident_memory_bytes',
  'process_virtual_memory_bytes',
  'process_heap_bytes',
  'process_max_fds',
  'nodejs_heap_size_total_bytes',
  'nodejs_heap_size_used_bytes',
  'nodejs_external_memory_bytes',
  'nodejs_heap_space_size_total_bytes{space="old"}',
])('has about the value of prom-client for %s', async (series) => {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: 2 ** 31 - 1 })
  const [ours, theirs] = [createRuntimeMetrics().text(), await registry.metrics()]
  const ratio = readValue(ours, series) / readValue(theirs, series)
  expect(ratio).toBeGreaterThan(0.5)
  expect(ratio).toBeLessThan(2)
})

it('counts what is active, and all CPU time of the process', () => {
  const runtime = createRuntimeMetrics()
  const before = process.cpuUsage()
  const text = runtime.text()
  const after = process.cpuUsage()
  expect(readValue(text, 'process_cpu_user_seconds_total')).toBeGreaterThanOrEqual(before.user / 1e6)
  expect(readValue(text, 'process_cpu_user_seconds_total')).toBeLessThanOrEqual(after.user / 1e6)
  expect(readValue(text, 'process_open_fds')).toBeGreaterThan(2)
  const types = [...text.matchAll(/^nodejs_active_resources\{type="\w+"\} (\d+)$/gm)].map(([, count]) => Number(count))
  expect(types.reduce((sum, count) => sum + count, 0)).toBe(readValue(text, 'nodejs_active_resources_total'))
})
