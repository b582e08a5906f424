// A service with thousands of endpoints changes under traffic: its rules are exchanged in parts, no connection fails, and the change of
// another service is written between two parts.

import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { Change } from '../lab/driver.ts'
import { folderFirst } from '../support/program-folders.ts'
import { until } from '../support/until.ts'
import { privateLock } from './iptables-holdings.ts'
import { NodeNetwork, podIps } from './node-network.ts'
import { ProxyProcess } from './proxy-process.ts'
import { expand, single } from './web-service.ts'

privateLock()

const giantIp = '172.30.9.1'
const count = 2500
let network: NodeNetwork
let folder: string
let server: Server | undefined

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-parts-'))
  network = await NodeNetwork.create()
  await network.useFlavour('nft')
  // The first pod has all these addresses.
  network.pod(0).configure(['route add local 10.181.0.0/16 dev lo'])
  network.node.configure(['route add 10.181.0.0/16 dev pod0'])
  server = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.on('data', () => socket.write(`${podIps[0]}\n`))
  })
  const listening = server
  const fd = network.pod(0).openSocket('tcp', '0.0.0.0', 8081)
  await new Promise<void>((resolve) => listening.listen({ fd }, resolve))
})

afterAll(async () => {
  await network?.close()
  server?.close()
  rmSync(folder, { recursive: true, force: true })
})

function giant(from: number): Change {
  const endpoints = Array.from({ length: count }, (_, i) => `10.181.${(from + i) >> 8}.${(from + i) & 255} local`)
  const slices = [0, 1, 2].map((n) => {
    const own = endpoints.slice(n * 1000, (n + 1) * 1000)
    return expand({ slice: `ns1/giant#${n}`, ports: ['p 8081/tcp'], endpoints: own }, 10 + n)
  })
  return { drop: [], put: [expand({ service: 'ns1/giant', clusterIP: giantIp, ports: ['p 80/tcp'] }, 9), ...slices] }
}

/** The restore program keeps its inputs. While `hold` exists, it waits with those that have the word in `hold` until `go` exists. */
async function keepInputs(): Promise<NodeJS.ProcessEnv> {
  const program = 'iptables-nft-restore'
  const real = (await network.run(`command -v ${program}`)).trim()
  const script = `#!/bin/sh
cd ${folder}
n=$(printf %05d $(ls inputs | wc -l))
cat > inputs/$n
if [ -e hold ] && grep -q -e "$(cat hold)" inputs/$n; then
  touch held
  for i in $(seq 300); do [ -e go ] && break; sleep 0.1; done
  rm -f hold
fi
exec ${real} "$@" < inputs/$n
`
  writeFileSync(join(folder, program), script, { mode: 0o755 })
  await network.run(`mkdir ${folder}/inputs`)
  return folderFirst(folder)
}

const inputs = () =>
  readdirSync(join(folder, 'inputs'))
    .sort()
    .map((name) => readFileSync(join(folder, 'inputs', name), 'utf8'))

const chainsAt = async (ip: string) => {
  const jump = new RegExp(`-d ${ip}/32 .*-j (KUBE-SVC-\\S+)`).exec(await network.run('iptables-nft-save -t nat'))
  return jump?.[1] ?? ''
}

it('rules are exchanged in parts while connections are made, and another service is written between two parts', async () => {
  const env = await keepInputs()
  const proxy = await ProxyProcess.start(network, [...giant(0).put, ...single('ns1/innocent', '172.30.9.2')], env)
  await proxy.settle()
  const chain = await chainsAt(giantIp)
  const before = inputs().length
  const load = await network.load(giantIp)
  // The first rules of another chain than the one in use: it waits until the other service has changed.
  writeFileSync(join(folder, 'hold'), `^-A KUBE-SVC-.*probability`)
  await proxy.apply(giant(1))
  await until('a part is being written', () => existsSync(join(folder, 'held')), { limitMs: 60_000 })
  await proxy.apply({ drop: [], put: single('ns1/late', '172.30.9.3') })
  writeFileSync(join(folder, 'go'), '')
  await until('the late service answers', async () => (await network.ask('172.30.9.3')) === podIps[0], {
    limitMs: 60_000,
  })
  await proxy.settle()
  const { problems, made } = await load.stop()
  expect(problems).toEqual([])
  expect(made).toBeGreaterThan(5)
  const later = inputs().slice(before)
  const late = later.findIndex((text) => text.includes('172.30.9.3'))
  const parts = later.flatMap((text, i) => (/^-A KUBE-SVC-.*probability/m.test(text) ? [i] : []))
  // Some parts come before the other service, and some after it; no part has more than 1,000 rules.
  expect(parts.filter((i) => i < late).length).toBeGreaterThan(0)
  expect(parts.filter((i) => i > late).length).toBeGreaterThan(1)
  for (const i of parts) expect(later[i]?.match(/^-A KUBE-SVC-.*probability/gm)?.length).toBeLessThanOrEqual(1001)
  // In the end the chain has its own name, as kube-proxy names it, and one rule per endpoint.
  expect(await chainsAt(giantIp)).toBe(chain)
  let saved = ''
  // Chains of endpoints that are gone are deleted after their counts have been read.
  const isSwept = async () => {
    saved = await network.run('iptables-nft-save -t nat')
    return !saved.includes('--to-destination 10.181.0.0:8081')
  }
  await until('the old endpoints are gone', isSwept, { limitMs: 60_000 })
  expect(saved.match(new RegExp(`^-A ${chain} .*-j KUBE-SEP-`, 'gm'))).toHaveLength(count)
  expect(saved).toContain('--to-destination 10.181.9.196:8081')
  expect(saved.match(/^:KUBE-SVC-/gm)).toHaveLength(3)
  await proxy.kill()
})
