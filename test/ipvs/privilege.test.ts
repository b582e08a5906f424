// ipvs mode with exactly the privileges that deploy/privileges.json and deploy/seccomp name, as test/kernel/privilege.test.ts has the other modes.
// It needs a kernel of this machine with IPVS: in an emulated CPU the confined proxy starts, and its first sync had not come after six minutes, even without strace.

import { chmodSync, chownSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { identityOf, privilegesOf, profileOf } from '../../packaging/privileges.ts'
import { inVm } from '../lab/vm.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { ConfinedProxy } from '../privilege/confined-proxy.ts'
import { exercise } from '../privilege/exercise.ts'
import { readRecord } from '../privilege/make-profile.ts'
import { serveName } from '../privilege/name-server.ts'
import { copyBundle } from '../privilege/program-copies.ts'
import { apiPort, initCommand, proxyFlags } from '../privilege/proxy-flags.ts'
import { allowedNames, killing } from '../privilege/seccomp-filter.ts'
import { nodeName } from '../scenarios/expand.ts'
import { IpvsNetwork, nodeIp, vip } from './ipvs-network.ts'

const pods = ['10.180.0.1', '10.180.0.2']
const objects = [
  { service: 'ns1/web', type: 'NodePort', clusterIP: vip, ports: ['http 80/tcp 30080'] },
  { slice: 'ns1/web', ports: ['http 80/tcp'], endpoints: pods.map((ip) => `${ip} local`) },
]

const closing: (() => unknown)[] = []
afterAll(async () => {
  for (const close of closing.reverse()) await close()
})

/** Records all calls and shows those that the profile lacks, instead of loading the profile. */
const updates = process.env.UPDATE_SECCOMP === '1'

it.skipIf(inVm).each(['nft', 'legacy'] as const)(
  'ipvs mode (%s) does everything with its privileges alone',
  async (flavour) => {
    const network = new IpvsNetwork()
    closing.push(() => network.close())
    await network.serve(...pods)
    await network.tool(`iptables-${flavour}`, '-t', 'mangle', '-N', 'KUBE-KUBELET-CANARY')
    const api = await WatchedApi.listen(network.node, apiPort)
    const names = await serveName(network.node, '127.0.0.1')
    closing.push(
      () => api.close(),
      () => names.close(),
    )
    const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
    api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status } as Item)
    api.put(...(network.manifests(objects) as unknown as Item[]))
    const program = await copyBundle()
    const folder = mkdtempSync(join(tmpdir(), 'sluice-record-'))
    closing.push(program.remove, () => rmSync(folder, { recursive: true }))
    chmodSync(folder, 0o755)
    const file = join(folder, 'record')
    writeFileSync(file, '')
    const identity = identityOf('ipvs', flavour)
    chownSync(file, identity.uid, identity.uid)
    await network.tool('sh', '-c', initCommand(program.command, 'ipvs'))
    const proxy = await ConfinedProxy.start({
      ...{
        node: network.node,
        program: program.command,
        flags: proxyFlags('ipvs'),
        ...identity,
        resolver: '127.0.0.1',
      },
      writable: privilegesOf('ipvs').writable,
      record: { file, calls: updates ? 'all' : 'execve' },
      ...(!updates && { profile: killing(profileOf('ipvs')) }),
    })
    closing.push(() => proxy.close())
    await exercise(proxy, {
      ...{ api, nodeIp, pods, podPort: 80, run: (command) => network.tool('sh', '-c', command) },
      isServed: async (ip) => pods.includes(await network.once(ip).catch(() => '')),
      damage: `iptables-${flavour} -t nat -F; ipvsadm -C`,
    })
    expect(await proxy.stop()).toEqual([null, 'SIGTERM'])
    const { calls, programs } = readRecord(readFileSync(file, 'utf8'))
    const own = [...new Set(programs.slice(1).map((path) => basename(path)))].sort()
    const allowed = allowedNames(profileOf('ipvs'))
    if (updates) console.log('RECORDED', [...calls].sort().join(' '), 'PROGRAMS', own.join(' '))
    expect([...calls].filter((name) => !allowed.has(name) && !/^(clone3|io_uring_.*)$/.test(name))).toEqual([])
    expect(privilegesOf('ipvs').programs).toEqual(expect.arrayContaining(own))
  },
)
