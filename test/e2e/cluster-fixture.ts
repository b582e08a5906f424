// What every scenario of the whole program needs: a cluster with our role, a gate, a node with endpoints, and eyes.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { until } from '../support/until.ts'
import { type AuditRecord, type Cluster, startCluster } from './cluster.ts'
import { type Gate, startGate } from './gate.ts'
import { node } from './kubectl-manifests.ts'
import { type NodeSpace, startNodeSpace } from './nodespace.ts'

export const RBAC = fileURLToPath(new URL('../../deploy/rbac.yaml', import.meta.url))
const ACCOUNT = 'system:serviceaccount:kube-system:sluice'
export const NODE = 'node-1'
/** Addresses of the node's namespace on which an endpoint answers with its own address. */
export const [ONE, TWO, THREE, SIX] = ['10.244.1.1', '10.244.1.2', '10.244.1.3', 'fd00:244:1::1'] as const
/** What a connection meets where nothing is served: refused by a rule, dropped by a rule, or no rule and no such host. */
export const NOWHERE = /^(timeout|ECONNREFUSED|EHOSTUNREACH|ENETUNREACH)$/

export interface ClusterFixture {
  readonly cluster: Cluster
  readonly gate: Gate
  readonly space: NodeSpace
  /** Where `giveToken` puts it. */
  readonly tokenFile: string
  /** Mints a token of our ServiceAccount that lives as long as the Secret of this name does, and writes the file. */
  giveToken(secret: string): Promise<string>
  clusterIps(service: string): Promise<readonly string[]>
  /** Dials port 80 of the address from the node until it answers so. */
  reaches(host: string, answer: string | RegExp, limitMs?: number): Promise<void>
  /** What the API server has written down about our ServiceAccount. */
  requests(): readonly AuditRecord[]
  stop(): Promise<void>
}

export async function startClusterFixture(binaries: string): Promise<ClusterFixture> {
  const cluster = await startCluster({ binaries })
  try {
    return await furnish(cluster)
  } catch (error) {
    await cluster.stop()
    throw error
  }
}

async function furnish(cluster: Cluster): Promise<ClusterFixture> {
  await cluster.kubectl(['apply', '-f', RBAC])
  await cluster.apply(node(NODE, ['198.18.0.10', 'fd00:18::10'], 'zone-a'))
  const socket = join(cluster.directory, 'gate.sock')
  const gate = await startGate(cluster.port, socket)
  const space = await startNodeSpace({
    directory: cluster.directory,
    gate: socket,
    nodeIps: ['198.18.0.10', 'fd00:18::10'],
    endpointIps: [ONE, TWO, THREE, SIX],
    endpointPort: 8080,
  })
  const tokenFile = join(cluster.directory, 'token')
  return {
    cluster,
    gate,
    space,
    tokenFile,
    async giveToken(secret) {
      await cluster.kubectl(['create', 'secret', 'generic', secret, '-n', 'kube-system'])
      const token = await cluster.mintToken('kube-system', 'sluice', secret)
      writeFileSync(tokenFile, token)
      return token
    },
    async clusterIps(service) {
      return JSON.parse(await cluster.kubectl(['get', 'service', service, '-o', 'json'])).spec.clusterIPs
    },
    async reaches(host, answer, limitMs = 30_000) {
      let heard = ''
      const probe = async () => {
        heard = await space.dial(host, 80)
        return typeof answer === 'string' ? heard === answer : answer.test(heard)
      }
      await until(`${host} answers ${answer}`, probe, { limitMs, everyMs: 100 }).catch((error: Error) => {
        throw new Error(`${error.message}; last heard: ${heard}`)
      })
    },
    requests: () => cluster.audit().filter((record) => record.user?.username === ACCOUNT),
    async stop() {
      await space.stop()
      await gate.stop()
      await cluster.stop()
    },
  }
}
