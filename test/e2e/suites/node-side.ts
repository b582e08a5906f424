// Tests what the program does for its node: kernel settings, health servers, Events, and the reasons to stop.

import { execFileSync } from 'node:child_process'
import { appendFileSync, chmodSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { until } from '../../support/until.ts'
import { type ClusterFixture, NODE, ONE, startClusterFixture, TWO } from '../cluster-fixture.ts'
import { list, service, slice } from '../kubectl-manifests.ts'
import { type RunningProxy, startProxy } from '../start-proxy.ts'

export function nodeSideSuite(binaries: string | undefined): void {
  describe.skipIf(binaries === undefined)('the node side', () => {
    let fixture: ClusterFixture
    let proxy: RunningProxy | undefined
    beforeAll(async () => {
      fixture = await startClusterFixture(binaries!)
      await fixture.writeToken('token-1')
    })
    afterEach(async () => {
      await proxy?.child.end('SIGTERM')
      proxy = undefined
    })
    afterAll(() => fixture?.stop())

    const start = async (extra: Partial<Parameters<typeof startProxy>[0]> = {}): Promise<RunningProxy> => {
      const { space, cluster, tokenFile } = fixture
      const kubeconfig = cluster.writeKubeconfig('proxy', { tokenFile }, space.server)
      proxy = await startProxy({ space, directory: cluster.directory, kubeconfig, nodeName: NODE, ...extra })
      return proxy
    }
    const inside = (...command: string[]): string => {
      const [program, ...args] = [...fixture.space.enter, ...command]
      return execFileSync(program!, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
    }
    const conntrack = { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '1h' }
    const events = async (kind: string, name: string): Promise<readonly { reason: string; note: string }[]> => {
      const all = JSON.parse(await fixture.cluster.kubectl(['get', 'events.events.k8s.io', '-A', '-o', 'json'])).items
      return all.filter(
        ({ regarding }: { regarding: { kind: string; name: string } }) =>
          regarding.kind === kind && regarding.name === name,
      )
    }

    it('B22 H15: --init-only writes the settings, no rules, and exits 0', async () => {
      inside('sysctl', '-qw', 'net.netfilter.nf_conntrack_tcp_timeout_close_wait=60')
      const initial = await start({ wait: false, flags: ['--init-only'], fields: { conntrack } })
      expect(await initial.child.exited).toBe(0)
      expect(inside('sysctl', '-n', 'net.netfilter.nf_conntrack_tcp_timeout_close_wait').trim()).toBe('3600')
      expect(inside('nft', 'list', 'tables')).not.toContain('kube-proxy')
    })

    it('reports its start in an Event on its Node', async () => {
      await start()
      await until('the Event', async () => (await events('Node', NODE)).some(({ reason }) => reason === 'Starting'))
    })

    it('A24: exits 1 when its configuration file is written to, and not when it is only touched', async () => {
      const running = await start()
      chmodSync(running.config, 0o600)
      await new Promise((resolve) => setTimeout(resolve, 500))
      expect(running.child.running).toBe(true)
      appendFileSync(running.config, '\n')
      expect(await running.child.exited).toBe(1)
    })

    it('B21: keeps proxying while its health port is taken, and exits 1 if bind errors are to be fatal', async () => {
      const port = '127.0.0.1:6443' // port of the gate
      await fixture.cluster.apply(list(service('web'), slice('web-4', 'web', [ONE])))
      const [four] = await fixture.clusterIps('web')
      const patient = await start({ fields: { healthzBindAddress: port } })
      await fixture.reaches(four!, ONE)
      expect(patient.child.output()).toContain('trying again in 5s')
      await patient.child.end('SIGTERM')
      const strict = await start({ wait: false, fields: { healthzBindAddress: port, bindAddressHardFail: true } })
      expect(await strict.child.exited).toBe(1)
      await until('the Event', async () =>
        (await events('Node', NODE)).some(({ reason }) => reason === 'FailedToStartProxierHealthcheck'),
      )
    })

    it('I18 I19: serves a health check node port while there are local endpoints, and only under the Local policy', async () => {
      const ports = [{ name: 'http', port: 80, targetPort: 8080, nodePort: 30998 }]
      const spec = { type: 'LoadBalancer', externalTrafficPolicy: 'Local', healthCheckNodePort: 30999, ports }
      const local = { endpoints: [{ addresses: [ONE], nodeName: NODE, conditions: { ready: true } }] }
      await fixture.cluster.apply(list(service('lb', spec), slice('lb-4', 'lb', [ONE], local)))
      await start()
      const url = 'http://198.18.0.10:30999/'
      const answer = async () => (await fixture.space.fetch(url)).status
      await until('200', async () => (await answer()) === 200)
      expect(JSON.parse((await fixture.space.fetch(url)).body)).toMatchObject({
        service: { namespace: 'default', name: 'lb' },
        localEndpoints: 1,
        serviceProxyHealthy: true,
      })
      const elsewhere = { endpoints: [{ addresses: [ONE], nodeName: 'other', conditions: { ready: true } }] }
      await fixture.cluster.apply(slice('lb-4', 'lb', [ONE], elsewhere))
      await until('503', async () => (await answer()) === 503)
      // I19: a terminating endpoint does not attract more traffic to this node, but serves what comes.
      const ending = [
        { addresses: [ONE], nodeName: NODE, conditions: { ready: false, serving: true, terminating: true } },
      ]
      await fixture.cluster.apply(slice('lb-4', 'lb', [ONE], { endpoints: ending }))
      await until('traffic to it', async () => (await fixture.space.dial('198.18.0.10', 30998)) === ONE)
      expect(await answer()).toBe(503)
      await fixture.cluster.kubectl(['delete', 'service/lb', 'endpointslice/lb-4'])
      await until('the port is closed', () =>
        answer().then(
          () => false,
          () => true,
        ),
      )
    })

    it('one bad object is named in an Event, and everything else keeps working', async () => {
      // The API server accepts these labels and names, and a proxy cannot use them.
      const bad = slice('bad-4', 'web', [TWO], {
        ports: [
          { protocol: 'TCP', port: 8080 },
          { name: 'http', protocol: 'TCP' },
        ],
      })
      await fixture.cluster.apply(list(service('web'), slice('web-4', 'web', [ONE]), bad))
      const [four] = await fixture.clusterIps('web')
      await start()
      await fixture.reaches(four!, ONE)
      await until('the Event', async () =>
        (await events('EndpointSlice', 'bad-4')).some(({ note }) => /ports\[1\]/.test(note)),
      )
    })

    it('J19: two hundred services at once are all served', async () => {
      await start()
      const names = Array.from({ length: 200 }, (_, i) => `many-${i}`)
      const objects = names.flatMap((name) => [
        service(name, { ipFamilyPolicy: 'SingleStack' }),
        slice(`${name}-4`, name, [ONE]),
      ])
      await fixture.cluster.apply(list(...objects))
      const all = JSON.parse(await fixture.cluster.kubectl(['get', 'services', '-o', 'json'])).items
      const ips: string[] = all
        .filter(({ metadata }: { metadata: { name: string } }) => metadata.name.startsWith('many-'))
        .map(({ spec }: { spec: { clusterIP: string } }) => spec.clusterIP)
      expect(ips).toHaveLength(200)
      for (const ip of ips) await fixture.reaches(ip, ONE)
    })

    it('--cleanup removes the rules and exits 0', async () => {
      await start()
      expect(inside('nft', 'list', 'tables')).toContain('table ip kube-proxy')
      await proxy?.child.end('SIGTERM')
      expect(inside('nft', 'list', 'tables')).toContain('table ip kube-proxy')
      const cleaning = await start({ wait: false, flags: ['--cleanup'] })
      expect(await cleaning.child.exited).toBe(0)
      expect(inside('nft', 'list', 'tables')).not.toContain('kube-proxy')
    })
  })
}
