// Tests the tools on which the other suites rely: compaction, tokens that end, a server that is killed and restarted.

import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { until } from '../../support/until.ts'
import { type Cluster, startCluster } from '../cluster.ts'
import { startGate } from '../gate.ts'
import { service } from '../kubectl-manifests.ts'
import { requestApi } from '../request-api.ts'

const RBAC = fileURLToPath(new URL('../../../deploy/rbac.yaml', import.meta.url))
const BUILDER = fileURLToPath(new URL('../build-cluster', import.meta.url))

export function clusterToolsSuite(binaries: string | undefined): void {
  describe('build-cluster', () => {
    let cache: string
    beforeAll(() => {
      cache = mkdtempSync(join(tmpdir(), 'sluice-cache-'))
    })
    afterAll(() => rmSync(cache, { recursive: true, force: true }))
    const run = (...args: string[]) =>
      new Promise<{ code: number; stderr: string }>((resolve) => {
        const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', HOME: cache, SLUICE_CACHE: cache }
        execFile('/bin/bash', [BUILDER, ...args], { env, timeout: 20_000 }, (error, _, stderr) =>
          resolve({ code: error === null ? 0 : Number(error.code), stderr }),
        )
      })

    it.skipIf(existsSync('/usr/bin/go'))('says in one line that there is no Go, and exits with 3', async () => {
      const { code, stderr } = await run('etcd')
      expect(code).toBe(3)
      expect(stderr).toMatch(/^build-cluster: no Go on this machine, and etcd not in .*\n$/)
    })

    it('refuses a program that it does not know', async () => {
      expect(await run('etcd', 'kube-router')).toMatchObject({
        code: 2,
        stderr: expect.stringContaining('kube-router'),
      })
    })
  })

  describe.skipIf(binaries === undefined)('a real control plane', () => {
    let cluster: Cluster
    beforeAll(async () => {
      cluster = await startCluster({ binaries: binaries! })
      await cluster.kubectl(['apply', '-f', RBAC])
    })
    afterAll(() => cluster?.stop())

    it('is release 1.36.4, dual-stack', async () => {
      expect(JSON.parse(await cluster.kubectl(['get', '--raw', '/version']))).toMatchObject({ gitVersion: 'v1.36.4' })
      await cluster.apply(service('dual'))
      const { spec } = JSON.parse(await cluster.kubectl(['get', 'service', 'dual', '-o', 'json']))
      expect(spec.clusterIPs).toEqual([expect.stringMatching(/^10\.96\./), expect.stringMatching(/^fd00:96::/)])
    })

    it('refuses a token after the Secret that it is bound to is deleted', async () => {
      await cluster.kubectl(['create', 'secret', 'generic', 'leash', '-n', 'kube-system'])
      const token = await cluster.mintToken('kube-system', 'sluice', 'leash')
      expect((await requestApi(cluster, { path: '/api/v1/services', token })).status).toBe(200)
      await cluster.kubectl(['delete', 'secret', 'leash', '-n', 'kube-system'])
      await until(
        'refused',
        async () => (await requestApi(cluster, { path: '/api/v1/services', token })).status === 401,
      )
    })

    it('refuses what the role does not allow, and records the client', async () => {
      const token = await cluster.mintToken('kube-system', 'sluice')
      expect((await requestApi(cluster, { path: '/api/v1/secrets', token })).status).toBe(403)
      const refused = cluster.audit().filter((record) => record.responseStatus?.code === 403)
      expect(refused.map((record) => [record.user?.username, record.verb, record.objectRef?.resource])).toContainEqual([
        'system:serviceaccount:kube-system:sluice',
        'list',
        'secrets',
      ])
    })

    it('cuts the connections of a client at the gate while the server goes on', async () => {
      const gate = await startGate(cluster.port)
      const token = await cluster.mintToken('kube-system', 'sluice')
      try {
        const watch = requestApi(cluster, { path: '/api/v1/services?watch=1', token, port: gate.port })
        await until('watch through the gate', () => gate.accepted === 1)
        gate.shut()
        await expect(watch).rejects.toThrow()
        await expect(requestApi(cluster, { path: '/api/v1/services', token, port: gate.port })).rejects.toThrow()
        expect((await requestApi(cluster, { path: '/api/v1/services', token })).status).toBe(200)
        gate.open()
        expect((await requestApi(cluster, { path: '/api/v1/services', token, port: gate.port })).status).toBe(200)
      } finally {
        await gate.stop()
      }
    })

    it('comes back on the same port after SIGKILL, and a compacted revision is then gone', async () => {
      const token = await cluster.mintToken('kube-system', 'sluice')
      await cluster.killApiServer()
      await expect(requestApi(cluster, { path: '/version', token })).rejects.toThrow('ECONNREFUSED')
      // Without its cache the API server passes every watch on to etcd, so the answer below comes from etcd.
      await cluster.startApiServer(['--watch-cache=false'])
      expect(await cluster.kubectl(['get', 'service', 'dual', '-o', 'name'])).toBe('service/dual\n')
      expect(await cluster.compact()).toBeGreaterThan(1)
      const { body } = await requestApi(cluster, {
        path: '/api/v1/services?watch=1&resourceVersion=1&timeoutSeconds=5',
        token,
      })
      expect(JSON.parse(body)).toMatchObject({ type: 'ERROR', object: { code: 410, reason: 'Expired' } })
    })
  })
}
