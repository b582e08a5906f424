// Checks deploy/monitoring without a proxy: promtool accepts the rules and passes their unit tests, and the files agree with our documents.
// test/e2e/monitoring.test.ts asks a real Prometheus the same queries.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { stringify } from 'yaml'
import { onPath } from '../e2e/binaries.ts'
import {
  alertsPath,
  alertTestsPath,
  discoveredLabels,
  metricOf,
  readAlerts,
  readAlertTests,
  readDashboard,
  readDocumentedMetrics,
  readPanelQueries,
  readRelabelling,
  seriesNames,
} from '../support/monitoring-queries.ts'

const hasPromtool = onPath('promtool')
if (!hasPromtool) process.stdout.write('SKIPPED alert rules in promtool: there is no promtool (package prometheus)\n')

const page = readFileSync(fileURLToPath(new URL('../../docs/monitoring.md', import.meta.url)), 'utf8')

describe.skipIf(!hasPromtool)('promtool', () => {
  it('accepts the rules, and sees all of them', () => {
    const output = execFileSync('promtool', ['check', 'rules', alertsPath], { encoding: 'utf8' })
    expect(output).toContain(`SUCCESS: ${readAlerts().length} rules found`)
  })

  it('passes the unit tests of the alerts', () => {
    const output = execFileSync('promtool', ['test', 'rules', alertTestsPath], { encoding: 'utf8' })
    expect(output).toContain('SUCCESS')
  })
})

describe.skipIf(!hasPromtool)('the scrape configuration', () => {
  it.each([
    ['10.0.0.7', '10.0.0.7:10249'],
    ['fd00::7', '[fd00::7]:10249'],
  ])('finds the metrics port of a node with the address %s', (address, target) => {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-scrape-'))
    const config = join(folder, 'prometheus.yaml')
    const found = [{ targets: ['kubelet:10250'], labels: discoveredLabels('node-7', address) }]
    const job = { job_name: 'kube-proxy', static_configs: found, relabel_configs: readRelabelling() }
    try {
      writeFileSync(config, stringify({ scrape_configs: [job] }))
      const output = execFileSync('promtool', ['check', 'service-discovery', '--timeout=5s', config, 'kube-proxy'])
      const [{ labels }] = JSON.parse(String(output))
      expect(labels).toMatchObject({ __address__: target, instance: 'node-7', job: 'kube-proxy' })
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})

describe('alerts', () => {
  it.each(readAlerts())('$alert has a unit test in which it fires, and one in which it does not', ({ alert }) => {
    const cases = readAlertTests().flatMap((test) => test.alert_rule_test)
    const expected = cases.filter(({ alertname }) => alertname === alert).map(({ exp_alerts }) => exp_alerts.length > 0)
    expect(new Set(expected)).toEqual(new Set([true, false]))
  })

  it.each(readAlerts())('$alert has a section in docs/monitoring.md, and names it', ({ alert, annotations }) => {
    expect(annotations.runbook).toBe(`docs/monitoring.md#${alert.toLowerCase()}`)
    expect(page).toContain(`\n### ${alert}\n`)
  })

  it('docs/monitoring.md describes no other alerts', () => {
    const described = [...page.matchAll(/^### (\w+)$/gm)].map(([, name]) => name)
    expect(described).toEqual(readAlerts().map(({ alert }) => alert))
  })
})

describe('queries', () => {
  const expressions = [...readAlerts().map(({ expr }) => expr), ...readPanelQueries().map((query) => query.expression)]
  const documented = readDocumentedMetrics()
  const ofPrometheusOrTheProcess = /^(?:up|(?:process|nodejs)_\w+)$/

  it('read only metrics of docs/metrics.md, of the process, and up', () => {
    const metrics = [...new Set(expressions.flatMap(seriesNames).map(metricOf))]
    const unknown = metrics.filter((name) => !documented.has(name) && !ofPrometheusOrTheProcess.test(name))
    expect(unknown).toEqual([])
    expect(metrics.length).toBeGreaterThan(30)
  })

  it('have a job in every selector, so that other jobs do not mix in', () => {
    const selectors = expressions.flatMap((expression) => expression.match(/\w+\{[^}]*\}/g) ?? [])
    expect(selectors.filter((selector) => !selector.includes('{job="kube-proxy"'))).toEqual([])
    const reads = expressions.flatMap(
      (text) => text.match(/\b(?:kubeproxy|sluice|rest_client|process|nodejs)_\w+/g) ?? [],
    )
    expect(selectors.length).toBeGreaterThanOrEqual(reads.length)
  })
})

describe('the dashboard', () => {
  const { panels } = readDashboard()

  it('has panels that do not overlap', () => {
    const cells = panels.flatMap(({ gridPos: { x, y, w, h } }) =>
      Array.from({ length: w * h }, (_, i) => `${x + (i % w)},${y + Math.floor(i / w)}`),
    )
    expect(new Set(cells).size).toBe(cells.length)
    expect(panels.filter(({ gridPos }) => gridPos.x + gridPos.w > 24)).toEqual([])
  })

  it('has a title, a description and a query in every panel, and ids once', () => {
    expect(new Set(panels.map(({ id }) => id)).size).toBe(panels.length)
    const graphs = panels.filter(({ type }) => type !== 'row')
    const incomplete = graphs.filter(({ title, description, targets }) => !title || !description || !targets?.length)
    expect(incomplete).toEqual([])
  })
})
