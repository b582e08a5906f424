// `sluice history` of the whole program on a node: a change of endpoints, rules that nft changed, and a crash.

import { appendFileSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { AdminClient } from '../../src/http/admin-client.ts'
import type { HistoryRecord } from '../../src/http/admin-history.ts'
import { sluice } from '../commands/run-command.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { web } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

let network: NodeNetwork
let api: WatchedApi
let folder: string
let proxy: WholeProxy | undefined

beforeEach(async () => {
  network = await NodeNetwork.create()
  folder = mkdtempSync(join(tmpdir(), 'sluice-history-'))
  writeFileSync(
    join(folder, 'sluice.yaml'),
    `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\nhistory: {directory: ${folder}/kept}\n`,
  )
  api = await WatchedApi.listen(network.node, 8001)
  api.put(node, ...endpointsBy('kube-controller-manager', podIps))
})

afterEach(async () => {
  await proxy?.stop('SIGKILL')
  proxy = undefined
  api.close()
  await network.close()
  rmSync(folder, { recursive: true, force: true })
})

const node = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: nodeName },
  spec: {},
  status: { addresses: [{ type: 'InternalIP', address: nodeIp }] },
}

/** The service and its slice, as if that manager had changed the slice last, and another one before. */
function endpointsBy(manager: string, ips: readonly string[]): readonly Item[] {
  return (web(ips).put as unknown as readonly Item[]).map((item) => ({
    ...item,
    metadata: {
      ...item.metadata,
      managedFields: [
        { manager, operation: 'Update', time: '2026-11-17T03:12:07Z', fieldsV1: { 'f:endpoints': {} } },
        { manager: 'before', operation: 'Apply', time: '2026-11-17T03:12:06Z' },
      ],
    },
  }))
}

const socket = () => join(folder, 'admin.sock')

/** Starts a proxy that does not own its table, as on kernels before 6.9, so that nft can change it. */
async function start(): Promise<WholeProxy> {
  const started = await WholeProxy.start({
    network,
    api,
    mode: 'nftables',
    flags: [`--sluice-config=${join(folder, 'sluice.yaml')}`],
    env: { SLUICE_ADMIN_SOCKET: socket(), SLUICE_NFT_FEATURES: '' },
  })
  proxy = started
  await started.waitUntilSynced()
  await until('the service answers', async () => (podIps as readonly string[]).includes(await network.ask()))
  return started
}

/** Newest first. */
async function records(): Promise<readonly HistoryRecord[]> {
  const question = { service: '', since: 0, beforeSync: 0, afterSync: 0, limit: 1000 }
  return (await new AdminClient(socket()).history(question)).records
}

async function untilRecorded(what: string, test: (record: HistoryRecord) => boolean): Promise<HistoryRecord> {
  let found: HistoryRecord | undefined
  await until(what, async () => {
    found = (await records()).find(test)
    return found !== undefined
  })
  return found as HistoryRecord
}

const history = async (...args: readonly string[]) => {
  const { status, stdout, stderr } = await sluice('history', ...args, '--socket', socket())
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
  return stdout
}

describe('the history of a proxy', () => {
  it('has the change of endpoints with its version and manager, the culprit of a drift, and reaches over a crash', async () => {
    const first = await start()
    const begun = (await records())[0]?.sync ?? 0
    api.put(...endpointsBy('hand-made', [podIps[1]]))
    const changed = await untilRecorded('the change', ({ objects }) =>
      objects.some(({ kind }) => kind === 'EndpointSlice'),
    )
    const slice = api.items().find(({ kind }) => kind === 'EndpointSlice')
    const resourceVersion = (slice as { metadata: { resourceVersion?: string } } | undefined)?.metadata.resourceVersion
    expect(changed.objects.filter(({ kind }) => kind === 'EndpointSlice')).toMatchObject([
      { service: 'ns1/web', action: 'changed', resourceVersion, manager: 'hand-made', operation: 'Update' },
    ])
    const text = await history('ns1/web')
    expect(text).toMatch(new RegExp(`sync ${changed.sync} \\(IPv4, [\\d.]+ ms\\): EndpointSlice ns1/\\S+ changed`))
    expect(text).toContain(`(resourceVersion ${resourceVersion}, by hand-made): endpoint 10.180.0.1:8080/tcp removed`)

    await network.run(`nft delete element ip kube-proxy service-ips '{ ${clusterIp} . tcp . 80 }'`)
    const drift = await untilRecorded('the drift', ({ notes }) => notes.some(({ kind }) => kind === 'drift'))
    expect(drift.notes).toMatchObject([{ kind: 'drift', text: expect.stringMatching(/^nft \(pid \d+\)$/) }])
    expect(drift.entries.length).toBeGreaterThan(0)
    expect(drift.entries.every(({ before, after }) => before === after)).toBe(true)
    expect(await history('--since', '-1h')).toMatch(
      /rules were changed by nft \(pid \d+\); repaired\n.*restored \S*.*172\.30\.0\.41/,
    )

    const difference = await history('diff', String(begun), 'now')
    expect(difference).toContain('service ns1/web\n  - endpoint 10.180.0.1:8080/tcp (port http, ready')
    expect(difference).toContain('Rules were repaired in 1 sync in between')
    expect(await history('diff', String(changed.sync), '--service', 'ns1/web')).toContain(
      'No frontend, endpoint or setting',
    )

    await first.stop('SIGKILL')
    const file = join(folder, 'kept', `${nodeName}.history`)
    expect(statSync(file).mode & 0o777).toBe(0o600)
    appendFileSync(file, '{"sync":99999,"at":"2026-')
    await start()
    const after = await records()
    expect(after.map(({ sync }) => sync)).toContain(drift.sync)
    expect(after[0]).toMatchObject({ causes: ['start'] })
    expect(after[0]?.sync).toBeGreaterThan(drift.sync)
    expect(after[0]?.sync).toBeLessThan(drift.sync + 20)
    await until('the start is on disk', () => readFileSync(file, 'utf8').trimEnd().endsWith('}'))
    expect(await history('diff', String(drift.sync), 'now')).toMatch(/Not known: the proxy started with sync \d+/)
  })
})
