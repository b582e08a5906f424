import { describe, expect, it } from 'vitest'
import { judgeFleet } from '../../../src/commands/nodes/fleet-answer.ts'
import type { FleetNode } from '../../../src/commands/nodes/fleet-reader.ts'
import type { NodeReport } from '../../../src/inspect/node-report.ts'
import { nodeReport, snapshotOf } from '../../support/node-reports.ts'

const now = Date.parse('2026-01-01T10:00:30Z')
const [tick, before] = ['2026-01-01T10:00:00Z', '2026-01-01T09:59:00Z']
const names = ['shop/web', 'shop/api', 'kube-system/dns']
const current = { 'shop/web': 2, 'shop/api': 1, 'kube-system/dns': 1 }

const reports = (
  name: string,
  services: Readonly<Record<string, number>>,
  fields: Partial<NodeReport> = {},
): FleetNode => ({
  name,
  pod: undefined,
  report: nodeReport(name, { snapshots: [snapshotOf(tick, services)], ...fields }),
})

const judge = (nodes: readonly FleetNode[], known: readonly string[] | undefined = names) =>
  judgeFleet({ nodes, remarks: [] }, known, now).nodes

const pod = (name: string, image: string) => ({
  namespace: 'kube-system',
  name: `proxy-${name}`,
  node: name,
  container: 'kube-proxy',
  image,
  isRunning: true,
  configMaps: [],
})

describe('the judgement about all nodes', () => {
  it('finds the node that differs, and the services in which it differs', () => {
    const stale = { 'shop/web': 1, 'kube-system/dns': 1, 'shop/old': 1 }
    const answer = judge([reports('a', current), reports('b', current), reports('c', stale)])
    expect(answer.map(({ node, state }) => [node, state])).toEqual([
      ['a', 'ok'],
      ['b', 'ok'],
      ['c', 'differs'],
    ])
    expect(answer[2]?.differences).toEqual([
      { service: '', how: 'extra' }, // it was deleted, so the API server does not know its name
      { service: 'shop/api', how: 'missing' },
      { service: 'shop/web', how: 'other' },
    ])
  })

  it('compares at the time at which all nodes looked, also while some have not written their newest report', () => {
    const older = { ...current, 'shop/web': 1 }
    const both = [snapshotOf(tick, current), snapshotOf(before, older)]
    const answer = judge([
      reports('a', {}, { snapshots: both }),
      reports('b', {}, { snapshots: both }),
      reports('late', {}, { snapshots: [snapshotOf(before, older)] }),
    ])
    expect(answer.map(({ state, comparedAtOtherTime }) => [state, comparedAtOtherTime])).toEqual(
      Array(3).fill(['ok', false]),
    )
  })

  it('gives nodes that are silent no vote', () => {
    const silent = { reportedAt: '2026-01-01T09:00:00Z' }
    const answer = judge([
      reports('a', current),
      reports('b', { 'shop/web': 1 }, silent),
      reports('c', { 'shop/web': 1 }, silent),
    ])
    expect(answer.map(({ state }) => state)).toEqual(['ok', 'silent', 'silent'])
  })

  it('takes, without a majority, the node that synced last for right', () => {
    const synced = (lastSync: string) => ({ families: [{ family: 4 as const, stateHash: '', lastSync, error: '' }] })
    const lagging = reports('a', { ...current, 'shop/web': 1 }, synced('2026-01-01T08:00:00Z'))
    const answer = judge([lagging, reports('b', current, synced('2026-01-01T09:59:59Z'))])
    expect(answer.map(({ state }) => state)).toEqual(['differs', 'ok'])
    const turned = judge([{ ...lagging, name: 'a' }, reports('b', current, synced('2026-01-01T07:00:00Z'))])
    expect(turned.map(({ state }) => state)).toEqual(['ok', 'differs'])
  })

  it('compares only nodes of the same families', () => {
    const dual = nodeReport('b').families.flatMap((one) => [one, { ...one, family: 6 as const }])
    const answer = judge([reports('a', current), reports('b', { other: 1 }, { families: dual })])
    expect(answer.map(({ state }) => state)).toEqual(['ok', 'ok'])
  })

  it('puts a failing sync before a difference, and says what is wrong', () => {
    const families = [{ family: 4 as const, stateHash: '', lastSync: tick, error: 'the kernel refuses' }]
    const [, , c] = judge([
      reports('a', current),
      reports('b', current),
      reports('c', { 'shop/web': 1 }, { families, quarantined: 2 }),
    ])
    expect(c).toMatchObject({
      state: 'failing',
      problems: ['the last sync of IPv4 failed: the kernel refuses', '2 services in quarantine'],
    })
  })

  it('recognises the proxies of nodes without a report by their images', () => {
    const without = (name: string, image?: string): FleetNode => ({
      name,
      report: undefined,
      pod: image === undefined ? undefined : pod(name, image),
    })
    const answer = judge([
      without('a', 'registry.k8s.io/kube-proxy:v1.36.4'),
      without('b', 'registry:5000/team/sluice:nftables-0.1.0@sha256:0123'),
      without('c'),
    ])
    expect(answer.map(({ program, version, state }) => [program, version, state])).toEqual([
      ['kube-proxy', 'v1.36.4', 'uncompared'],
      ['sluice', 'nftables-0.1.0', 'unreported'],
      ['unknown', '', 'absent'],
    ])
  })
})
