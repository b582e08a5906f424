// The dashboard of a whole cluster, and of the proxy of another node through the API server: over HTTP, and in Chromium where it is installed.

import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { FleetAnswer } from '../../src/commands/nodes/fleet-answer.ts'
import type { FlowMessage, PageAbout, PageMessage, ServiceList } from '../../src/http/admin-page.ts'
import { findBarriers, openPage, whyNot } from '../browser/chromium.ts'
import { until } from '../support/until.ts'
import { findBinaries } from './binaries.ts'
import { type Child, startChild } from './child.ts'
import { type FleetFixture, type FleetNode, startFleetFixture } from './fleet-fixture.ts'
import { list, service, slice } from './kubectl-manifests.ts'
import { proxyMissing } from './start-proxy.ts'

/** Gets a picture of the page, to look at. */
const shots = process.env.SLUICE_SHOTS ?? ''
const SLUICE = fileURLToPath(new URL('../../bin/sluice', import.meta.url))
const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
const missing = 'missing' in found ? found.missing : proxyMissing()
if (missing !== undefined) process.stdout.write(`SKIPPED tier e2e, dashboard of all nodes: ${missing}\n`)
const noBrowser = whyNot()
if (noBrowser !== '') process.stdout.write(`SKIPPED the pages of the dashboard of all nodes: ${noBrowser}\n`)

describe.skipIf(missing !== undefined)('sluice dashboard with a cluster', () => {
  let fixture: FleetFixture
  const started: OpenedDashboard[] = []

  beforeAll(async () => {
    fixture = await startFleetFixture('directory' in found ? found.directory : '', ['node-1', 'node-2'])
    const single = { ipFamilyPolicy: 'SingleStack' }
    await fixture.cluster.apply(list(service('web', single), slice('web-1', 'web', ['10.244.1.1'])))
  })
  afterAll(() => fixture?.stop())
  afterEach(async () => {
    for (const one of started.splice(0)) await one.close()
  })

  const start = async (...args: readonly string[]) => {
    const opened = await openDashboard(fixture, args)
    started.push(opened)
    return opened
  }

  /** Waits until both nodes have reported. */
  const reported = (dashboard: OpenedDashboard) =>
    until(
      'both nodes report',
      async () => {
        const fleet = await dashboard.ask<FleetAnswer>('fleet')
        return fleet.nodes.filter(({ state, services }) => state === 'ok' && services === 2).length === 2 && fleet
      },
      { limitMs: 60_000, everyMs: 500 },
    )

  it('shows the nodes of the cluster with --kubeconfig, and no proxy', async () => {
    const dashboard = await start('--kubeconfig', fixture.operator)
    const about = await dashboard.ask<PageAbout>('about')
    expect(about).toMatchObject({ hasProxy: false, fleetFlags: ['--kubeconfig', fixture.operator] })
    const { nodes, remarks } = await reported(dashboard)
    expect(nodes.map(({ node, state }) => [node, state])).toEqual([
      ['node-1', 'ok'],
      ['node-2', 'ok'],
      ['old-1', 'uncompared'],
    ])
    expect(remarks).toEqual([])
  })

  it.skipIf(noBrowser !== '')('lists the nodes on the page', async () => {
    const dashboard = await start('--kubeconfig', fixture.operator)
    await reported(dashboard)
    const { page, errors, foreign, close } = await openPage(dashboard.url)
    try {
      await page.getByRole('heading', { name: 'Nodes', level: 1 }).waitFor()
      await page.getByText('3 nodes, 0 different from most').waitFor()
      const row = await page.getByRole('row').filter({ hasText: 'node-2' }).innerText()
      expect(
        row
          .split('\t')
          .slice(0, 5)
          .map((cell) => cell.trim()),
      ).toEqual(['node-2', 'ok', 'sluice 0.1.0', 'nftables', '2'])
      expect(await page.getByRole('row').filter({ hasText: 'old-1' }).innerText()).toContain('kube-proxy v1.36.4')
      await page.getByRole('button', { name: /^Copy the command .*sluice nodes --kubeconfig/ }).click()
      expect(await findBarriers(page)).toEqual([])
      if (shots !== '') await page.screenshot({ path: join(shots, 'nodes-light-1440.png') })
      expect([errors, foreign]).toEqual([[], []])
    } finally {
      await close()
    }
  })

  it('answers for the proxy of another node, also while several viewers follow its flows', async () => {
    const before = fixture.kubelet.executed.length
    const dashboard = await start('--node', 'node-2', '--kubeconfig', fixture.operator)
    expect(await dashboard.ask<PageAbout>('about')).toMatchObject({ hasProxy: true, fleetFlags: expect.any(Array) })
    const messages = dashboard.follow<PageMessage>('events')
    const overview = await until('the overview comes', () => messages.find(({ kind }) => kind === 'overview'))
    expect(overview).toMatchObject({ overview: { node: 'node-2', mode: 'nftables', services: 2 } })
    const viewers = [1, 2, 3, 4].map(() => dashboard.follow<FlowMessage>('flows/events'))
    for (const viewer of viewers) {
      await until('a viewer sees flows', () => viewer.some(({ kind }) => kind === 'coverage'), { limitMs: 20_000 })
    }
    // A program in the pod for each viewer would fill its memory.
    expect(fixture.kubelet.executed.length - before).toBeLessThanOrEqual(3)
    const { rows } = await dashboard.ask<ServiceList>('services')
    expect(rows.map((row) => JSON.stringify(row)).join()).toContain('default/web')
    expect(await dashboard.ask('history')).toMatchObject({ records: expect.any(Array) })
    expect((await reported(dashboard)).nodes).toHaveLength(3)
  })

  it('says that the proxy of the node is gone, and goes on when its successor answers', async () => {
    const dashboard = await start('--node', 'node-1', '--kubeconfig', fixture.operator)
    const messages = dashboard.follow<PageMessage>('events')
    await until('the overview comes', () => messages.some(({ kind }) => kind === 'overview'))
    const node = fixture.nodes[0] as FleetNode
    await node.proxy.child.end('SIGKILL')
    const gone = await until('the page hears of it', () => messages.find(({ kind }) => kind === 'gone'), {
      limitMs: 20_000,
    })
    expect(JSON.stringify(gone)).toContain('node-1')
    messages.length = 0
    await node.restart()
    await until('the successor answers', () => messages.some(({ kind }) => kind === 'overview'), { limitMs: 30_000 })
    expect(dashboard.child.running).toBe(true)
  })
})

interface OpenedDashboard {
  readonly url: string
  readonly child: Child
  ask<T>(path: string): Promise<T>
  /** Returns a list that grows. */
  follow<T>(path: string): T[]
  close(): Promise<void>
}

let dashboards = 0

/** Starts the command as the operator, and opens its URL as a browser does. */
async function openDashboard({ cluster }: FleetFixture, args: readonly string[]): Promise<OpenedDashboard> {
  const log = join(cluster.directory, `dashboard-${++dashboards}.log`)
  const child = startChild({ program: SLUICE, args: ['dashboard', ...args], log })
  const url = await until(
    'the dashboard prints its URL',
    () => {
      if (!child.running) throw new Error(`the dashboard has ended: ${child.output()}`)
      return /^http:\S+$/m.exec(child.output())?.[0]
    },
    { limitMs: 30_000 },
  )
  const { origin } = new URL(url)
  const admitted = await fetch(url, { redirect: 'manual' })
  const headers = { cookie: (admitted.headers.get('set-cookie') ?? '').split(';')[0] as string }
  const stop = new AbortController()
  const request = (path: string) => fetch(`${origin}/api/${path}`, { headers, signal: stop.signal })
  return {
    url,
    child,
    async ask(path) {
      const answer = await request(path)
      const body = await answer.text()
      if (answer.status !== 200) throw new Error(`${path}: ${answer.status} ${body}`)
      return JSON.parse(body)
    },
    follow: <T>(path: string) => {
      const messages: T[] = []
      const read = async () => {
        let rest = ''
        const decoder = new TextDecoder()
        for await (const chunk of (await request(path)).body ?? []) {
          const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
          rest = lines.pop() ?? ''
          for (const line of lines) if (line.startsWith('data: ')) messages.push(JSON.parse(line.slice(6)))
        }
      }
      read().catch(() => {})
      return messages
    },
    async close() {
      stop.abort()
      expect(await child.end('SIGTERM')).toBe(0)
    },
  }
}
