// Replaces the real kube-proxy in nftables mode by ours, and ours by kube-proxy, while connections are made: none may fail.

import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Child, startChild } from '../child.ts'
import { type ClusterFixture, NODE, ONE, startClusterFixture, THREE, TWO } from '../cluster-fixture.ts'
import { list, service, slice } from '../kubectl-manifests.ts'
import { type RunningProxy, startProxy } from '../start-proxy.ts'

const LOAD = fileURLToPath(new URL('../connect.worker.ts', import.meta.url))
const OWN = fileURLToPath(new URL('../../../bin/kube-proxy', import.meta.url))
const services = ['over-1', 'over-2', 'over-3', 'over-4']

export function takeoverSuite(binaries: string | undefined): void {
  describe.skipIf(binaries === undefined)('taking over', () => {
    let fixture: ClusterFixture
    let kubeconfig: string
    const running: Child[] = []

    beforeAll(async () => {
      fixture = await startClusterFixture(binaries!)
      await fixture.writeToken('takeover')
      kubeconfig = fixture.cluster.writeKubeconfig('takeover', { tokenFile: fixture.tokenFile }, fixture.space.server)
      const affinity = { sessionAffinity: 'ClientIP' }
      await fixture.cluster.apply(
        list(
          ...services.flatMap((name, i) => [
            service(name, i === 3 ? affinity : {}),
            slice(`${name}-4`, name, [ONE, TWO, THREE]),
          ]),
        ),
      )
    })
    afterAll(async () => {
      for (const child of running) await child.end('SIGKILL')
      await fixture?.stop()
    })

    async function start(program: string): Promise<RunningProxy> {
      const { cluster, space } = fixture
      const proxy = await startProxy({ space, directory: cluster.directory, kubeconfig, nodeName: NODE, program })
      running.push(proxy.child)
      return proxy
    }
    const theirs = () => start(join(binaries!, 'kube-proxy'))
    const ours = () => start(OWN)

    async function load(): Promise<Child> {
      const targets = await Promise.all(services.map(async (name) => (await fixture.clusterIps(name))[0]!))
      for (const target of targets) await fixture.reaches(target, /^10\.244\.1\.[123]$/)
      const child = startChild({
        wrapper: fixture.space.enter,
        program: process.execPath,
        args: ['--import', 'tsx', LOAD, '4', [ONE, TWO, THREE].join(','), ...targets],
        log: join(fixture.cluster.directory, 'load.log'),
      })
      running.push(child)
      return child
    }

    it('goes both ways under load without one failed connection', { timeout: 240_000 }, async () => {
      let theirProxy = await theirs()
      const traffic = await load()
      for (let round = 0; round < 3; round++) {
        // A DaemonSet is replaced in this way: the old process ends, then the new one begins.
        await theirProxy.child.end('SIGTERM')
        const ourProxy = await ours()
        await ourProxy.child.end('SIGTERM')
        theirProxy = await theirs()
      }
      // Ours is started while the other still runs: it replaces the table at once, and the process that starts last has it.
      const last = await ours()
      await theirProxy.child.end('SIGTERM')
      for (const name of services) await fixture.reaches((await fixture.clusterIps(name))[0]!, /^10\.244\.1\.[123]$/)
      await last.child.end('SIGTERM')
      await traffic.end('SIGTERM', 30_000)
      const { made, failed, reached } = JSON.parse(traffic.output().trim().split('\n').at(-1)!)
      console.log(`taking over: ${made} connections, failed: ${JSON.stringify(failed)}`)
      expect(failed).toEqual({})
      expect(made).toBeGreaterThan(1_000)
      expect(Object.keys(reached).sort()).toEqual([ONE, TWO, THREE])
    })

    it('gives the table up at SIGTERM so that kube-proxy finds nothing foreign in it', async () => {
      const proxy = await ours()
      await proxy.child.end('SIGTERM')
      const theirProxy = await theirs()
      expect(await theirProxy.metrics()).not.toMatch(/nftables_(sync|cleanup)_failures_total\S* [1-9]/)
      expect(theirProxy.child.output()).not.toMatch(/sync failed/i)
      await theirProxy.child.end('SIGTERM')
    })
  })
}
