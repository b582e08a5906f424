// Tests how the program finds the API server and what it leaves behind, with a new process for each case.

import { mkdirSync, writeFileSync } from 'node:fs'
import { copyFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { until } from '../../support/until.ts'
import { type ClusterFixture, NODE, ONE, RBAC, startClusterFixture, TWO } from '../cluster-fixture.ts'
import { list, service, slice } from '../kubectl-manifests.ts'
import { type RunningProxy, startProxy } from '../start-proxy.ts'

export function startupSuite(binaries: string | undefined): void {
  describe.skipIf(binaries === undefined)('a starting proxy', () => {
    let fixture: ClusterFixture
    let proxy: RunningProxy | undefined
    let four: string
    beforeAll(async () => {
      fixture = await startClusterFixture(binaries!)
      await fixture.writeToken('token-1')
      await fixture.cluster.apply(list(service('web'), slice('web-4', 'web', [ONE])))
      four = (await fixture.clusterIps('web'))[0]!
    })
    afterEach(async () => {
      await proxy?.child.end('SIGTERM')
      proxy = undefined
    })
    afterAll(() => fixture?.stop())

    const start = async (kubeconfig: string, extra: Partial<Parameters<typeof startProxy>[0]> = {}) => {
      const { space, cluster } = fixture
      const common = { space, directory: cluster.directory, kubeconfig, nodeName: NODE }
      proxy = await startProxy({ ...common, ...extra })
      return proxy
    }
    const byToken = () =>
      fixture.cluster.writeKubeconfig('proxy', { tokenFile: fixture.tokenFile }, fixture.space.server)

    it('waits for an API server that is not there yet', async () => {
      fixture.gate.shut()
      const waiting = await start(byToken(), { wait: false })
      await new Promise((resolve) => setTimeout(resolve, 3_000))
      expect(waiting.child.running).toBe(true)
      fixture.gate.open()
      await fixture.reaches(four, ONE, 60_000)
    })

    it('waits for a role that is not there yet, and reports what is missing', async () => {
      const { cluster, space, reaches } = fixture
      await cluster.kubectl(['delete', 'clusterrolebinding', 'sluice'])
      try {
        await cluster.apply(slice('web-4', 'web', [TWO]))
        const waiting = await start(byToken(), { wait: false })
        await until('a word about it', () => /\b(nodes|endpointslices)\b.*forbidden/i.test(waiting.child.output()))
        expect(waiting.child.running).toBe(true)
        expect(await space.dial(four, 80)).toBe(ONE) // the rules of the previous process: the new one knows nothing yet
      } finally {
        await cluster.kubectl(['apply', '-f', RBAC])
      }
      await reaches(four, TWO, 90_000)
    })

    it('J6: leaves its rules when it ends, by SIGTERM or by SIGKILL, and adopts them at the next start', async () => {
      const first = await start(byToken())
      await fixture.reaches(four, TWO)
      await first.child.end('SIGTERM')
      expect(await fixture.space.dial(four, 80)).toBe(TWO)
      await fixture.cluster.apply(slice('web-4', 'web', [ONE]))
      const second = await start(byToken())
      await fixture.reaches(four, ONE)
      await second.child.end('SIGKILL')
      expect(await fixture.space.dial(four, 80)).toBe(ONE)
      await fixture.cluster.apply(slice('web-4', 'web', [TWO]))
      await start(byToken())
      await fixture.reaches(four, TWO)
    })

    it('is accepted by client certificate as system:kube-proxy, with the role that every cluster has', async () => {
      const { cluster, space } = fixture
      await cluster.authority.issue('node-proxier', '/CN=system:kube-proxy')
      await start(cluster.writeKubeconfig('certificate', { certificate: 'node-proxier' }, space.server))
      await cluster.apply(slice('web-4', 'web', [ONE]))
      await fixture.reaches(four, ONE)
      const own = cluster.audit().filter((record) => record.user?.username === 'system:kube-proxy')
      expect(own.length).toBeGreaterThan(0)
      expect(own.filter((record) => record.responseStatus?.code === 403)).toEqual([])
    })

    it('finds the API server as a pod does: environment and mounted ServiceAccount, no kubeconfig', async () => {
      const { cluster, space } = fixture
      const account = join(cluster.directory, 'serviceaccount')
      mkdirSync(account)
      await copyFile(cluster.authority.certificate, join(account, 'ca.crt'))
      writeFileSync(join(account, 'token'), await cluster.mintToken('kube-system', 'sluice'))
      writeFileSync(join(account, 'namespace'), 'kube-system')
      const { hostname, port } = new URL(space.server)
      await start('', {
        env: { ...process.env, KUBERNETES_SERVICE_HOST: hostname, KUBERNETES_SERVICE_PORT: port },
        wrapper: ['sh', '-c', MOUNT, account],
      })
      await cluster.apply(slice('web-4', 'web', [TWO]))
      await fixture.reaches(four, TWO)
    })
  })
}

/** Runs in the mount namespace that `ip netns exec` has made; $0 is the directory, the rest is the program. */
const MOUNT = `set -e
at=/run/secrets/kubernetes.io/serviceaccount
mount -t tmpfs none /run
mkdir -p $at
mount --bind "$0" $at
exec "$@"`
