// A node that starts while its API server is away serves the state that it saved, with real packets, and moves to the live state without
// a gap. The whole program; what a reboot does to the kernel is done to its tables.

import {
  chmodSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import { shortWaits } from '../support/short-waits.ts'
import { until } from '../support/until.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { extras, single, web } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

const goneIp = '172.30.0.77'
const newIp = '172.30.0.78'

let network: NodeNetwork
let api: FixedApi
let folder: string
let proxy: WholeProxy | undefined

beforeEach(async () => {
  network = await NodeNetwork.create()
  folder = mkdtempSync(join(tmpdir(), 'sluice-state-'))
  writeFileSync(join(folder, 'sluice.yaml'), configuration())
})

afterEach(async () => {
  await proxy?.stop('SIGKILL')
  proxy = undefined
  api.close()
  await network.close()
  rmSync(folder, { recursive: true, force: true })
})

const configuration = (more = '') => `apiVersion: sluice/v1alpha1
kind: SluiceConfiguration
state:
  directory: ${folder}/state
${more}`
const stateFile = () => join(folder, 'state', `${nodeName}.state`)

async function serve(objects: readonly Manifest[]): Promise<void> {
  api = await serveObjects(network.node, nodeName, nodeIp, objects)
}

async function start(env: NodeJS.ProcessEnv = {}): Promise<WholeProxy> {
  const flags = [`--sluice-config=${join(folder, 'sluice.yaml')}`, '--healthz-bind-address=127.0.0.1:10256', '--v=2']
  proxy = await WholeProxy.start({ network, api, mode: 'nftables', flags, env })
  return proxy
}

/** Lets a proxy save its state, then kills it and takes the API server and everything in the kernel away. */
async function saveAndReboot(objects: readonly Manifest[]): Promise<void> {
  await serve(objects)
  const first = await start(shortWaits)
  await first.waitUntilSynced()
  await until('the state is saved', () => readFileSync(stateFile(), 'utf8').includes('["end"]'))
  await first.stop('SIGKILL')
  proxy = undefined
  api.close()
  await network.run('nft flush ruleset')
  expect(await network.ask(clusterIp, 80, 500)).not.toMatch(/^10\.180/)
}

const health = async () =>
  JSON.parse(await network.run('curl -s -m 5 http://127.0.0.1:10256/livez')) as Record<string, unknown>

describe('a node that boots without its API server', () => {
  it('serves the saved state, says so, and moves to the live state without a gap', async () => {
    await saveAndReboot([...web().put, ...single('ns1/gone', goneIp), ...extras(20).put])
    expect(statSync(stateFile()).mode & 0o777).toBe(0o600)
    const second = await start(shortWaits)
    await expect.poll(() => network.ask(), { timeout: 20_000, interval: 20 }).toMatch(/^10\.180/)
    expect(podIps).toContain(await network.ask(goneIp))
    expect(podIps).toContain(await network.ask(nodeIp, 30080))
    expect(await second.metrics()).toMatch(/sluice_saved_state_in_use 1/)
    expect(await health()).toMatchObject({ healthy: true, savedState: { savedAt: expect.stringMatching(/^20\d\d-/) } })
    const load = await network.load()
    await serve([...web().put, ...single('ns1/new', newIp), ...extras(20).put])
    await expect.poll(() => network.ask(newIp, 80, 500), { timeout: 60_000 }).toMatch(/^10\.180/)
    await expect.poll(() => second.metrics(), { timeout: 20_000 }).toMatch(/sluice_saved_state_in_use 0/)
    // What the live list lacks has gone; everything else served without a gap.
    await expect.poll(() => network.ask(goneIp, 80, 500), { timeout: 20_000 }).not.toMatch(/^10\.180/)
    expect((await load.stop()).problems).toEqual([])
    expect(await health()).not.toHaveProperty('savedState')
    expect(second.log).toContain('The live state has replaced the saved one')
  })

  it.each<[string, () => void, string]>([
    ['damaged', () => damage((text) => text.replace('10.180.0.1', '10.180.0.9')), 'damaged or incomplete'],
    ['empty', () => damage(() => ''), 'does not begin as a saved state'],
    ['not a state', () => damage(() => 'hello\n'.repeat(100)), 'does not begin as a saved state'],
    [
      'cut before the end of its snapshot',
      () => damage((text) => text.slice(0, text.indexOf('["end"]') - 20)),
      'damaged or incomplete',
    ],
    [
      'too old',
      () => utimesSync(stateFile(), new Date(), new Date(Date.now() - 100 * 3_600_000)),
      'old, and 24h are allowed',
    ],
    [
      'too large',
      () => writeFileSync(join(folder, 'sluice.yaml'), configuration('  maxBytes: 100\n')),
      'bytes, and 100 are allowed',
    ],
    ['writable by others', () => chmodSync(stateFile(), 0o666), 'other users may write'],
    ['a symbolic link', () => link(), 'is a symbolic link'],
  ])('refuses a file that is %s with a word, and serves when the API server is back', async (_, change, word) => {
    await saveAndReboot(web().put)
    change()
    const second = await start(shortWaits)
    await until('the refusal is logged', () => second.log.includes(word))
    expect(await network.ask(clusterIp, 80, 500)).not.toMatch(/^10\.180/)
    expect(second.child.exitCode).toBe(null)
    await serve(web().put)
    await expect.poll(() => network.ask(clusterIp, 80, 500), { timeout: 60_000 }).toMatch(/^10\.180/)
  })
})

it('a proxy that is killed while it writes leaves a state that can be used', async () => {
  await serve([...web().put, ...extras(1500).put])
  const file = () => join(folder, 'state')
  let good = 0
  for (let i = 0; i < 6; i++) {
    const one = await start()
    await one.waitUntilSynced()
    // The snapshot begins a second after the first lists; kills fall before, into and after it.
    const isWriting = () => readdirSync(file()).some((name) => name.endsWith('.part'))
    if (i % 2 === 0)
      await until('a snapshot is being written', isWriting, { everyMs: 1, limitMs: 4000 }).catch(() => undefined)
    else await delay(900 + 60 * i)
    await one.stop('SIGKILL')
    proxy = undefined
    const text = readdirSync(file()).includes(`${nodeName}.state`) ? readFileSync(stateFile(), 'utf8') : ''
    if (text === '') continue
    expect(text).toContain('["end"]')
    good++
  }
  expect(good).toBeGreaterThan(0)
  api.close()
  await network.run('nft flush ruleset')
  await start()
  await expect.poll(() => network.ask(), { timeout: 20_000, interval: 20 }).toMatch(/^10\.180/)
})

function damage(change: (text: string) => string): void {
  writeFileSync(stateFile(), change(readFileSync(stateFile(), 'utf8')))
}

function link(): void {
  const text = readFileSync(stateFile())
  writeFileSync(join(folder, 'elsewhere'), text, { mode: 0o600 })
  rmSync(stateFile())
  symlinkSync(join(folder, 'elsewhere'), stateFile())
}
