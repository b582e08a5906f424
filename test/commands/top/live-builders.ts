// Builds the answers of a proxy, for tests of the live view.

import type { LiveDocument } from '../../../src/commands/top/live-document.ts'
import type { PortSummary, ReportSummary, ServiceSummary, Summary } from '../../../src/http/admin.ts'

export const now = Date.parse('2026-11-16T12:00:00Z')

export const report = (fields: Partial<ReportSummary> = {}): ReportSummary => ({
  family: 4,
  startedAt: '2026-11-16T11:59:57Z',
  causes: ['change'],
  durationMs: 1.25,
  full: false,
  ok: true,
  error: '',
  put: 8,
  dropped: 0,
  held: 40,
  services: [],
  refused: [],
  ...fields,
})

export const port = (name: string, endpoints: readonly string[], fields: Partial<PortSummary> = {}): PortSummary => ({
  name,
  protocol: 'tcp',
  frontends: [{ kind: 'cluster-ip', ip: '10.96.0.80', port: 80, answersAt: '10.96.0.80:80' }],
  internal: 'cluster',
  external: 'cluster',
  endpoints: endpoints.map((address) => ({ address, local: false })),
  ejected: [],
  drainingUntil: '',
  affinitySeconds: 0,
  ...fields,
})

export const service = (name: string, ports: readonly PortSummary[], fields: Partial<ServiceSummary> = {}) => ({
  service: name,
  family: 4 as const,
  ports,
  pending: false,
  entries: 4,
  inKernel: undefined,
  wrong: [],
  lost: [],
  quarantine: '',
  ...fields,
})

const counters = {
  syncs: 1,
  failures: 0,
  puts: 0,
  drops: 0,
  refusals: 0,
  conflicts: 0,
  drifts: 0,
  problems: 0,
  serviceChanges: 0,
  sliceChanges: 0,
}

export const summary = (services: number, fields: Partial<Summary> = {}): Summary => ({
  node: 'node1',
  mode: 'nftables',
  pid: 1,
  version: '0.1.0',
  startedAt: '2026-11-16T11:55:00Z',
  services,
  families: [{ family: 4, stateHash: '0000000ac2c2e6c748fb7e7a', entries: 10, lastSync: report() }],
  conflicts: [],
  quarantined: [],
  drifts: [],
  invalidManifests: [],
  savedState: null,
  reports: [report({ services: ['work/saythx-redis'] })],
  counters,
  connections: { tracked: 1, limit: 262144 },
  ...fields,
})

export const document = (services: readonly ServiceSummary[], fields: Partial<LiveDocument> = {}): LiveDocument => ({
  summary: summary(services.length),
  services,
  connections: [],
  changes: [],
  now,
  ...fields,
})

/** The services of `sluice up --demo`, with two pods of work/saythx-redis. */
export const demo = (): readonly ServiceSummary[] => [
  service('default/hello', [port('default/hello', ['10.32.0.3:8080', '10.32.1.3:8080'])]),
  service('default/kubernetes', [port('default/kubernetes:https', ['192.168.77.11:6443'])]),
  service('default/nobody', [port('default/nobody', [])]),
  service('work/saythx-redis', [
    port('work/saythx-redis', ['10.32.0.2:6379', '10.32.1.2:6379'], {
      frontends: [
        { kind: 'cluster-ip', ip: '10.103.193.175', port: 6379, answersAt: '10.103.193.175:6379' },
        { kind: 'node-port', ip: '', port: 31269, answersAt: ':31269' },
      ],
    }),
  ]),
]

/** As many services as asked for, each with five endpoints. */
export const many = (n: number): readonly ServiceSummary[] =>
  Array.from({ length: n }, (_, i) => {
    const name = `load/service-${String(i).padStart(5, '0')}`
    const endpoints = [1, 2, 3, 4, 5].map((host) => `10.${64 + (i >> 8)}.${i & 255}.${host}:8080`)
    return service(name, [port(name, endpoints)])
  })
