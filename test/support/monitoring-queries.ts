// Reads the queries of deploy/monitoring: those of the dashboard, with Grafana's variables filled in, and those of the alert rules.

import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parse } from 'yaml'

const pathOf = (file: string): string => fileURLToPath(new URL(`../../deploy/monitoring/${file}`, import.meta.url))

export const alertsPath = pathOf('alerts.yaml')
export const alertTestsPath = pathOf('alerts.test.yaml')

/** The labels of a node in a cluster from which scrape.yaml makes the target. */
export const discoveredLabels = (name: string, address: string): Readonly<Record<string, string>> => ({
  __meta_kubernetes_node_name: name,
  __meta_kubernetes_node_address_InternalIP: address,
})

/** Returns the relabel_configs of scrape.yaml. Debian's Prometheus is built without the discovery of Kubernetes, so tests use the rest. */
export const readRelabelling = (): readonly unknown[] =>
  parse(readFileSync(pathOf('scrape.yaml'), 'utf8')).scrape_configs[0].relabel_configs

export interface Panel {
  readonly id: number
  readonly type: string
  readonly title: string
  readonly description?: string
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number }
  readonly targets?: readonly { readonly refId: string; readonly expr: string }[]
}

export interface Dashboard {
  readonly uid: string
  readonly panels: readonly Panel[]
  readonly templating: { readonly list: readonly { readonly name: string; readonly query: unknown }[] }
}

export interface Alert {
  readonly alert: string
  readonly expr: string
  readonly labels: { readonly severity: string }
  readonly annotations: Readonly<Record<string, string>>
}

export interface AlertTest {
  readonly name: string
  readonly alert_rule_test: readonly { readonly alertname: string; readonly exp_alerts: readonly unknown[] }[]
}

export const readDashboard = (): Dashboard => JSON.parse(readFileSync(pathOf('dashboard.json'), 'utf8'))

export const readAlerts = (): readonly Alert[] =>
  (parse(readFileSync(alertsPath, 'utf8')).groups as { rules: Alert[] }[]).flatMap(({ rules }) => rules)

export const readAlertTests = (): readonly AlertTest[] => parse(readFileSync(alertTestsPath, 'utf8')).tests

export interface PanelQuery {
  readonly panel: string
  readonly expression: string
}

/** Fills in the variables as Grafana does when all instances are chosen and the last hour is shown. */
export const readPanelQueries = (): readonly PanelQuery[] =>
  readDashboard().panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr }) => ({ panel: title, expression: fillIn(expr) })),
  )

const fillIn = (expression: string): string =>
  expression.replaceAll('$job', 'kube-proxy').replaceAll('$instance', '.*').replaceAll('$__rate_interval', '5m')

/** Every metric has one of these prefixes or is `up`, which Prometheus makes itself. */
const metricName = /\b(?:kubeproxy|sluice|rest_client|kubernetes|process|nodejs|go)_\w+|\bup(?=\{)/g

/** Returns the names of the series that an expression reads. */
export const seriesNames = (expression: string): readonly string[] => [...new Set(expression.match(metricName) ?? [])]

/** Returns the name of the metric to which a series belongs: a histogram has three series. */
export const metricOf = (series: string): string => series.replace(/_(?:bucket|sum|count)$/, '')

/** The metrics of docs/metrics.md. */
export function readDocumentedMetrics(): ReadonlySet<string> {
  const text = readFileSync(fileURLToPath(new URL('../../docs/metrics.md', import.meta.url)), 'utf8')
  return new Set([...text.matchAll(/^\| `(\w+)`/gm)].map(([, name]) => name ?? ''))
}
