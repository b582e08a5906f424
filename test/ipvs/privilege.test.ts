// ipvs mode with exactly the privileges that deploy/privileges.json and deploy/seccomp name, as test/kernel/privilege.test.ts has the other modes.
// In an emulated CPU each test takes two minutes, and with strace five on a busy machine: there, programs are recorded only with SLUICE_FULL=1.

import { chmodSync, chownSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { identityOf, privilegesOf, profileOf } from '../../packaging/privileges.ts'
import { full, timeLimit } from '../lab/vm.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { ConfinedProxy } from '../privilege/confined-proxy.ts'
import { exercise } from '../privilege/exercise.ts'
import { readRecord } from '../privilege/make-profile.ts'
import { serveName } from '../privilege/name-server.ts'
import { copyBundle } from '../privilege/program-copies.ts'
import { apiPort, initCommand, proxyFlags } from '../privilege/proxy-flags.ts'
import { allowedNames, killing } from '../privilege/seccomp-filter.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { IpvsNetwork, nodeIp, vip } from './ipvs-network.ts'

const pods = ['10.180.0.1', '10.180.0.2']
const objects = [
  { service: 'ns1/web', type: 'NodePort', clusterIP: vip, ports: ['http 80/tcp 30080'] },
  { slice: 'ns1/web', ports: ['http 80/tcp'], endpoints: pods.map((ip) => `${ip} local`) },
]

const closing: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

/** Records all calls and shows those that the profile lacks, instead of loading the profile. */
const updates = process.env.UPDATE_SECCOMP === '1'
const isRecording = updates || full

interface Started {
  readonly network: IpvsNetwork
  readonly api: WatchedApi
  readonly proxy: ConfinedProxy
  /** The file with what strace recorded. */
  readonly record: string
}

async function startConfined(flavour: 'nft' | 'legacy', identity = identityOf('ipvs', flavour)): Promise<Started> {
  const network = new IpvsNetwork()
  closing.push(() => network.close())
  await network.serve(...pods)
  await network.tool(`iptables-${flavour}`, '-t', 'mangle', '-N', 'KUBE-KUBELET-CANARY')
  const api = await WatchedApi.listen(network.node, apiPort)
  const names = await serveName(network.node, '127.0.0.1')
  const program = await copyBundle()
  const folder = mkdtempSync(join(tmpdir(), 'sluice-record-'))
  closing.push(
    () => api.close(),
    () => names.close(),
    program.remove,
    () => rmSync(folder, { recursive: true }),
  )
  const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
  api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status } as Item)
  api.put(...(network.manifests(objects) as unknown as Item[]))
  chmodSync(folder, 0o755)
  const record = join(folder, 'record')
  writeFileSync(record, '')
  chownSync(record, identity.uid, identity.uid)
  await network.tool('sh', '-c', initCommand(program.command, 'ipvs'))
  const proxy = await ConfinedProxy.start({
    ...{ node: network.node, program: program.command, flags: proxyFlags('ipvs'), ...identity },
    resolver: '127.0.0.1',
    writable: privilegesOf('ipvs').writable,
    ...(isRecording && { record: { file: record, calls: updates ? 'all' : 'execve' } as const }),
    ...(!updates && { profile: killing(profileOf('ipvs')) }),
  })
  closing.push(() => proxy.close())
  return { network, api, proxy, record }
}

it.each(['nft', 'legacy'] as const)('ipvs mode (%s) does everything with its privileges alone', async (flavour) => {
  const { network, api, proxy, record } = await startConfined(flavour)
  await exercise(proxy, {
    ...{ api, nodeIp, pods, podPort: 80, run: (command) => network.tool('sh', '-c', command) },
    isServed: async (ip) => pods.includes(await network.once(ip).catch(() => '')),
    damage: `iptables-${flavour} -t nat -F; ipvsadm -C`,
  })
  expect(await proxy.stop()).toEqual([null, 'SIGTERM'])
  if (!isRecording) return
  const { calls, programs } = readRecord(readFileSync(record, 'utf8'))
  const own = [...new Set(programs.slice(1).map((path) => basename(path)))].sort()
  const allowed = allowedNames(profileOf('ipvs'))
  if (updates) console.log('RECORDED', [...calls].sort().join(' '), 'PROGRAMS', own.join(' '))
  expect([...calls].filter((name) => !allowed.has(name) && !/^(clone3|io_uring_.*)$/.test(name))).toEqual([])
  expect(privilegesOf('ipvs').programs).toEqual(expect.arrayContaining(own))
})

it.skipIf(updates)('without CAP_NET_RAW, ipvs mode does not serve, and says why', async () => {
  const { uid } = identityOf('ipvs', 'nft')
  const { network, proxy } = await startConfined('nft', { uid, capabilities: ['NET_ADMIN'] })
  const isNamed = () => proxy.log.includes("Can't open socket to ipset")
  await proxy.unlessItEnds(until('the log names the cause', isNamed, { limitMs: timeLimit(60_000) }))
  expect(pods).not.toContain(await network.once(vip).catch(() => ''))
})
