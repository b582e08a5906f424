// Tests the view of all nodes with a real API server: three proxies, of which one becomes stale although it reports, and then silent.

import { spawn } from 'node:child_process'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { FleetAnswer, NodeAnswer } from '../../../src/commands/nodes/fleet-answer.ts'
import type { Explanation } from '../../../src/http/admin.ts'
import { TmuxTerminal, whyNoTmux } from '../../support/tmux-terminal.ts'
import { until } from '../../support/until.ts'
import { type FleetFixture, type FleetNode, run, socketPathOf, startFleetFixture } from '../fleet-fixture.ts'
import { list, service, slice } from '../kubectl-manifests.ts'
import { requestApi } from '../request-api.ts'

const BIN = dirname(fileURLToPath(new URL('../../../bin/sluice', import.meta.url)))
const LEASES = '/apis/coordination.k8s.io/v1/namespaces/sluice-nodes/leases'
const single = { ipFamilyPolicy: 'SingleStack' }

export function fleetSuite(binaries: string | undefined): void {
  describe.skipIf(binaries === undefined)('all nodes at once', () => {
    let fixture: FleetFixture
    beforeAll(async () => {
      fixture = await startFleetFixture(binaries!, ['node-1', 'node-2', 'node-3'])
      await fixture.cluster.apply(
        list(
          service('web', single),
          slice('web-1', 'web', ['10.244.1.1']),
          service('api', single),
          slice('api-1', 'api', ['10.244.1.1']),
          // Its rules differ between nodes, its objects do not.
          service('local', { ...single, internalTrafficPolicy: 'Local' }),
          slice('local-1', 'local', ['10.244.1.1'], {
            endpoints: [{ addresses: ['10.244.1.1'], nodeName: 'node-1', conditions: { ready: true } }],
          }),
        ),
      )
    })
    afterAll(async () => {
      await fixture?.stop()
    })

    const readNodes = async (): Promise<readonly NodeAnswer[]> => {
      const { stdout, stderr } = await fixture.sluice('nodes', '-o', 'json')
      expect(stderr).toBe('')
      return (JSON.parse(stdout) as FleetAnswer).nodes
    }
    const untilNodes = async (what: string, accepts: (nodes: readonly NodeAnswer[]) => boolean) => {
      let last: readonly NodeAnswer[] = []
      const check = async () => {
        last = await readNodes()
        return accepts(last)
      }
      await until(what, check, { limitMs: 90_000, everyMs: 500 }).catch((error: Error) => {
        throw new Error(
          `${error.message}; last: ${JSON.stringify(last.map(({ node, state, services, differences }) => ({ node, state, services, differences })))}`,
        )
      })
      return last
    }
    const stateOf = (nodes: readonly NodeAnswer[], name: string) => nodes.find(({ node }) => node === name)?.state

    it('lists every node, of Sluice and of kube-proxy, and finds those of Sluice equal whatever their rules', async () => {
      const nodes = await untilNodes('three nodes report the services', (all) =>
        all.slice(0, 3).every(({ state, services }) => state === 'ok' && services === 4 /* with default/kubernetes */),
      )
      expect(nodes.map(({ node, program, version, mode, state }) => [node, program, version, mode, state])).toEqual([
        ['node-1', 'sluice', '0.1.0', 'nftables', 'ok'],
        ['node-2', 'sluice', '0.1.0', 'nftables', 'ok'],
        ['node-3', 'sluice', '0.1.0', 'nftables', 'ok'],
        ['old-1', 'kube-proxy', 'v1.36.4', '', 'uncompared'],
      ])
      const hashes = nodes.slice(0, 3).map(({ families }) => families[0]?.stateHash)
      expect(hashes[1]).toBe(hashes[2])
      expect(hashes[0]).not.toBe(hashes[1])
    })

    it('asks one proxy through the API server: status, explain and top', async () => {
      const status = await fixture.sluice('status', '--node', 'node-2')
      expect(status).toMatchObject({ status: 0, stderr: '' })
      expect(status.stdout).toContain('Proxy on node-2: mode nftables')
      expect(status.stdout).toContain('default/web')
      const explained = await fixture.sluice('explain', 'default/local', '--node', 'node-1')
      expect(explained).toMatchObject({ status: 0, stderr: '' })
      expect(explained.stdout).toContain('on node-1, mode nftables')
      expect(await firstEvent(fixture, 'node-2')).toMatchObject({ apiVersion: 'sluice/v1', kind: 'ProxyEvent' })
      expect(fixture.kubelet.executed[0]).toBe('/exec/kube-system/sluice-node-2/kube-proxy sluice connect node-2')
    })

    it.skipIf(whyNoTmux() !== undefined)('shows the live view of another node in a terminal', async () => {
      const terminal = new TmuxTerminal(80, 24)
      try {
        terminal.type(`KUBECONFIG=${fixture.operator} ${join(BIN, 'sluice')} top --node node-2; echo "status=$?"`)
        await terminal.shows(/^> default\/\w+/m)
        expect(terminal.lines()[0]).toContain('node-2')
        // The view follows that proxy: a change there appears here.
        await terminal.shows(/default\/web:http .*10\.244\.1\.1/)
        await fixture.cluster.apply(slice('web-1', 'web', ['10.244.1.2']))
        await terminal.shows(/default\/web:http .*10\.244\.1\.2/)
        await fixture.cluster.apply(slice('web-1', 'web', ['10.244.1.1']))
        terminal.press('q')
        await terminal.shows('status=0')
        expect(terminal.mode()).toBe('0 1')
      } finally {
        terminal.close()
      }
    })

    it('reads the configuration of kube-proxy from its ConfigMap, and calls unknown what it would say without it', async () => {
      const explain = async (from: string) => {
        const argv = ['explain', 'default/web', '--node', 'old-1', '--simulate', '--from', from, '-o', 'json']
        const { stdout, stderr } = await fixture.sluice(...argv, '--kubeconfig', fixture.cluster.kubeconfig)
        expect(stderr).toBe('')
        const { items } = JSON.parse(stdout) as { items: readonly Explanation[] }
        return items.map(({ mode, snat }) => [mode, snat])
      }
      expect(await explain('10.244.9.9')).toEqual([['nftables', null]])
      await fixture.cluster.apply(kubeadmConfigMap('10.244.0.0/16'))
      expect(await explain('10.244.9.9')).toEqual([['iptables', false]])
      expect(await explain('192.0.2.7')).toEqual([['iptables', true]])
    })

    it('finds a pod with --kubeconfig while the proxy at --socket answers, with what its kernel has', async () => {
      const { cluster } = fixture
      await cluster.apply(clientPod)
      const status = JSON.stringify({ status: { podIP: '10.244.9.9' } })
      await cluster.kubectl(['patch', 'pod', 'client', '-n', 'kube-system', '--subresource=status', '-p', status])
      const argv = ['explain', 'default/web', '--from', 'pod/kube-system/client', '--socket']
      const alone = await fixture.sluice(...argv, socketPathOf(cluster, 'node-1'))
      expect(alone.status).toBe(1)
      expect(alone.stderr).toContain('the proxy cannot read pods')
      const advice =
        /add (--kubeconfig) FILE together with (--socket \S+),/.exec(alone.stderr) ?? expect.fail(alone.stderr)
      expect(advice[2]).toBe(`--socket ${socketPathOf(cluster, 'node-1')}`)
      const both = await fixture.sluice(
        ...[...argv, socketPathOf(cluster, 'node-1'), '--kubeconfig', cluster.kubeconfig, '-o', 'json'],
      )
      expect(both).toMatchObject({ status: 0, stderr: '' })
      const { items } = JSON.parse(both.stdout) as { items: readonly Explanation[] }
      expect(items.map(({ packet }) => packet.from)).toEqual(['10.244.9.9'])
      expect(items.flatMap(({ entries }) => entries).map(({ kernel }) => kernel)).toContain('present')
    })

    it('says that kube-proxy cannot be asked, and which nodes there are', async () => {
      const asked = await fixture.sluice('status', '--node', 'old-1')
      expect(asked.status).toBe(1)
      expect(asked.stderr).toContain('old-1 does not run Sluice')
      expect(asked.stderr).toContain('registry.k8s.io/kube-proxy:v1.36.4')
      const nowhere = await fixture.sluice('status', '--node', 'node-9')
      expect(nowhere.stderr).toContain('there is no node node-9; there is node-1, node-2, node-3, old-1')
    })

    it('works as a plugin of kubectl', async () => {
      const env = { KUBECONFIG: fixture.operator, PATH: `${BIN}:${process.env.PATH}` }
      const answer = await run(join(binaries!, 'kubectl'), ['sluice', 'nodes', '--context', 'e2e'], env)
      expect(answer.stderr).toBe('')
      expect(answer.stdout).toMatch(/^NODE +PROXY +VERSION +MODE/)
    })

    it('gives operators and proxies no more than that', async () => {
      const env = { KUBECONFIG: fixture.operator }
      const kubectl = join(binaries!, 'kubectl')
      // Admission decides before the kubelet is asked, and before the connection changes its protocol.
      const tryExec = async (...command: readonly string[]) => {
        const query = command.map((word) => `command=${encodeURIComponent(word)}`).join('&')
        const path = `/api/v1/namespaces/kube-system/pods/sluice-node-1/exec?container=kube-proxy&${query}`
        return (await run(kubectl, ['get', '--raw', path], env)).stderr
      }
      const refusal = 'members of sluice:operators may run only sluice connect NODE here'
      for (const command of [
        ['kube-proxy', '--cleanup'],
        ['sluice', 'cleanup'],
        ['sluice', 'connect'],
      ]) {
        expect(await tryExec(...command)).toContain(refusal)
      }
      expect(await tryExec('sluice', 'connect', 'node-1')).not.toContain(refusal)
      const secrets = await run(kubectl, ['get', 'secrets', '-A'], env)
      expect(secrets.stderr).toContain('forbidden')
      const [first] = fixture.nodes as readonly [FleetNode]
      const foreign = await writeLease(fixture, first.token, 'node-2')
      expect(foreign.body).toContain('a proxy may report only for its own node')
      expect((await writeLease(fixture, first.token, 'node-1')).status).toBe(200)
      expect((await requestApi(fixture.cluster, { path: LEASES, token: first.token })).status).toBe(403)
    })

    it('shows the node that became stale although it still reports, and the services in which it is', async () => {
      const stale = fixture.nodes[2] as FleetNode
      stale.gate.freeze()
      await fixture.cluster.apply(list(slice('web-1', 'web', ['10.244.1.2']), service('new', single)))
      await fixture.cluster.kubectl(['delete', 'service/api', 'endpointslice/api-1'])
      const nodes = await untilNodes('node-3 differs', (all) => stateOf(all, 'node-3') === 'differs')
      expect(nodes.map(({ state }) => state)).toEqual(['ok', 'ok', 'differs', 'uncompared'])
      expect(nodes[2]?.differences).toEqual([
        { service: '', how: 'extra' },
        { service: 'default/new', how: 'missing' },
        { service: 'default/web', how: 'other' },
      ])
      const shown = await fixture.sluice('nodes')
      expect(shown.status).toBe(3)
      expect(shown.stdout).toContain('node-3: default/web has other content than on most nodes')
    })

    it('shows the node whose proxy has ended', async () => {
      const gone = fixture.nodes[1] as FleetNode
      await gone.proxy.child.end('SIGKILL')
      const nodes = await untilNodes('node-2 is silent', (all) => stateOf(all, 'node-2') === 'silent')
      expect(stateOf(nodes, 'node-1')).toBe('ok')
    })
  })
}

/** kubeadm writes more fields, and the kind behind most of them. */
const kubeadmConfigMap = (clusterCidr: string): string =>
  JSON.stringify({
    apiVersion: 'v1',
    kind: 'ConfigMap',
    metadata: { name: 'kube-proxy', namespace: 'kube-system' },
    data: {
      'config.conf': `apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
clusterCIDR: ${clusterCidr}
detectLocalMode: ""
kind: KubeProxyConfiguration
mode: iptables
`,
      'kubeconfig.conf': 'apiVersion: v1\nkind: Config\n',
    },
  })

const clientPod = JSON.stringify({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'client', namespace: 'kube-system' },
  spec: { serviceAccountName: 'sluice', containers: [{ name: 'client', image: 'client' }] },
})

/** Starts `sluice top --node` on a pipe, changes a service, returns the first event, and ends the program as a person would. */
async function firstEvent({ operator, cluster }: FleetFixture, node: string): Promise<unknown> {
  const child = spawn(join(BIN, 'sluice'), ['top', '--node', node, '-o', 'json'], {
    env: { ...process.env, KUBECONFIG: operator },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const exited = new Promise<number | null>((resolve) => child.on('exit', resolve))
  let text = ''
  child.stdout.on('data', (chunk) => {
    text += chunk
  })
  let ready = 0
  const changed = async () => {
    // A change before the program listens has no event.
    await cluster.apply(slice('web-1', 'web', [`10.244.1.${1 + (ready++ % 2)}`]))
    return text.includes('\n')
  }
  await until('an event', changed, { limitMs: 30_000, everyMs: 500 })
  await cluster.apply(slice('web-1', 'web', ['10.244.1.1']))
  child.kill('SIGINT')
  expect(await exited).toBe(0)
  return JSON.parse(text.split('\n')[0] as string)
}

/** Patches a Lease with the token of a proxy. */
async function writeLease({ cluster }: FleetFixture, token: string, name: string) {
  return requestApi(cluster, {
    path: `${LEASES}/${name}`,
    token,
    patch: { metadata: { labels: { written: 'by-test' } } },
  })
}
