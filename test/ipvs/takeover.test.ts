// Switches a running node from kube-proxy in ipvs mode to us, and back: connections go on, and each adopts what the other created.

import { afterAll, describe, expect, it } from 'vitest'
import { full } from '../lab/vm.ts'
import { until } from '../support/until.ts'
import { IpvsNetwork, keepAsking, vip } from './ipvs-network.ts'
import { haveKubeProxy, Proxies } from './whole-proxies.ts'

const reason = haveKubeProxy ? '' : ' [kube-proxy is not built: test/e2e/build-cluster kube-proxy]'

const objects = [
  { service: 'ns1/svc1', type: 'NodePort', clusterIP: vip, ports: ['p80 80/tcp 30001'] },
  { slice: 'ns1/svc1', ports: ['p80 80/tcp'], endpoints: ['10.180.0.1 local', '10.180.0.2 local'] },
]

let network: IpvsNetwork | undefined
let proxies: Proxies | undefined
const close = () => {
  proxies?.close()
  network?.close()
}
afterAll(close)

describe('take-over of servers that someone created without any rule', () => {
  it('keeps their connections unchanged, without masquerading, where connections are tracked', async () => {
    const own = new IpvsNetwork()
    network = own
    await own.serve('10.180.0.1', '10.180.0.2')
    const script = [
      // The kernel tracks connections in a namespace from the first rule that matches their state, of any program; a rule in the nat table is not enough.
      'iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP',
      'sysctl -qw net.ipv4.vs.conntrack=1 net.ipv4.ip_forward=1',
      `ip link add kube-ipvs0 type dummy && ip addr add ${vip}/32 dev kube-ipvs0`,
      `ipvsadm -A -t ${vip}:80 -s rr`,
      `ipvsadm -a -t ${vip}:80 -r 10.180.0.1:80 -m && ipvsadm -a -t ${vip}:80 -r 10.180.0.2:80 -m`,
    ]
    await own.tool('sh', '-ec', script.join('\n'))
    const connections = [await own.connect(), await own.connect()]
    const asBegun = /ESTABLISHED src=203\.0\.113\.2 .* dst=203\.0\.113\.2 /g
    await waitForFlows(own, asBegun, connections.length)
    const asking = keepAsking(connections)
    await own.start(...objects)
    expect(['10.180.0.1', '10.180.0.2']).toContain(await own.once())
    expect(await asking.failures()).toEqual([])
    // The old connections stay; the new one is masqueraded.
    await waitForFlows(own, asBegun, connections.length)
    await waitForFlows(own, / src=203\.0\.113\.2 .* dst=10\.255\.0\.1 /g, 1)
    close()
  })
})

describe.skipIf(reason !== '')(`take-over from kube-proxy 1.36.4${reason}`, () => {
  const repeats = Number(process.env.REPEATS ?? 0)
  it('drops no connection, rewrites no server, and leaves one set of rules', { repeats }, () => takeOver(false))
  it.skipIf(!full)('neither does kube-proxy when it comes back', { repeats }, () => takeOver(true))

  async function takeOver(andBack: boolean): Promise<void> {
    const own = new IpvsNetwork()
    network = own
    await own.serve('10.180.0.1', '10.180.0.2')
    proxies = await Proxies.open(own, ...objects)
    const rules = () => own.tool('iptables-save')
    const theirs = proxies.theirs('ipvs')
    // kube-proxy creates its servers before its rules, and in a namespace where nothing else needs connection tracking, tracking begins with the
    // rules. A connection that is made in between counts as a new one then, is masqueraded in the middle, and the pod resets it, with any proxy.
    const whole = async () =>
      (await own.destinations().catch(() => [])).length === 2 && /-A KUBE-MARK-MASQ /.test(await rules())
    await until('kube-proxy serves', whole, { limitMs: 180_000 }).catch((error) => {
      throw new Error(`${error.message}; the output of kube-proxy:\n${theirs.output()}`)
    })
    const connections = [
      await own.connect(),
      await own.connect(),
      await own.connect({ to: '192.168.0.2', port: 30_001 }),
    ]
    await waitForFlows(own, /ESTABLISHED src=203\.0\.113\.2 .* dst=10\.255\.0\.1 /g, connections.length)
    const before = (await own.destinations()).map((line) => line.split(' ')[0])
    const asking = keepAsking(connections)

    await theirs.kill('SIGKILL')
    await own.start(...objects)
    expect(['10.180.0.1', '10.180.0.2']).toContain(await own.once())
    expect((await own.destinations()).map((line) => line.split(' ')[0])).toEqual(before)
    const ours = await rules()
    expect(ours.match(/-j KUBE-SERVICES$/gm)).toHaveLength(2)
    expect(ours).toContain('SLUICE-IPVS-OUTPUT')

    if (!andBack) {
      expect(await asking.failures()).toEqual([])
      return close()
    }
    own.driver.close()
    const again = proxies.theirs('ipvs')
    // kube-proxy does not have this rule, so the rule is gone when kube-proxy has written its own.
    const theirRules = async () => !/-A KUBE-PROXY-FIREWALL .*SLUICE-DROP/.test(await rules())
    await until('kube-proxy serves again', theirRules, { limitMs: 180_000 }).catch((error) => {
      throw new Error(`${error.message}; the output of kube-proxy:\n${again.output()}`)
    })
    expect(['10.180.0.1', '10.180.0.2']).toContain(await own.once())
    expect((await own.destinations()).map((line) => line.split(' ')[0])).toEqual(before)
    expect(await asking.failures()).toEqual([])
    close()
  }
})

/** Lists the tracked connections until the expected number matches: a list may lack one that changes meanwhile. */
async function waitForFlows(own: IpvsNetwork, pattern: RegExp, count: number): Promise<void> {
  let tracked = ''
  const listed = async () => {
    tracked = await own.tool('conntrack', '-L', '-p', 'tcp')
    return tracked.match(pattern)?.length === count
  }
  await until(`${count} flows like ${pattern}`, listed, { limitMs: 20_000 }).catch((error) => {
    throw new Error(`${error.message}; the flows are\n${tracked}`)
  })
}
