// What every suite of the whole program needs: a cluster with our role, a gate, a node with endpoints, and ways to observe them.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { until } from '../support/until.ts'
import { type AuditRecord, type Cluster, startCluster } from './cluster.ts'
import { type Gate, startGate } from './gate.ts'
import { node } from './kubectl-manifests.ts'
import { type NodeNamespace, startNodeNamespace } from './node-namespace.ts'

export const RBAC = fileURLToPath(new URL('../../deploy/rbac.yaml', import.meta.url))
const ACCOUNT = 'system:serviceaccount:kube-system:sluice'
export const NODE = 'node-1'
/** Addresses in the namespace of the node; an endpoint answers on each with its own address. */
export const [ONE, TWO, THREE, SIX] = ['10.244.1.1', '10.244.1.2', '10.244.1.3', 'fd00:244:1::1'] as const
/** Results of a connection to a service that does not exist: a rule refuses or drops it, or there is neither a rule nor a host. */
export const NOWHERE = /^(timeout|ECONNREFUSED|EHOSTUNREACH|ENETUNREACH)$/

export interface ClusterFixture {
  readonly cluster: Cluster
  readonly gate: Gate
  readonly space: NodeNamespace
  /** File that `writeToken` writes. */
  readonly tokenFile: string
  /** Creates a token of our ServiceAccount that is valid as long as the Secret of this name exists, and writes it to the file. */
  writeToken(secret: string): Promise<string>
  clusterIps(service: string): Promise<readonly string[]>
  /** Dials port 80 of the address from the node until that is the answer. */
  reaches(host: string, answer: string | RegExp, limitMs?: number): Promise<void>
  /** Returns the audit records of our ServiceAccount. */
  requests(): readonly AuditRecord[]
  stop(): Promise<void>
}

export async function startClusterFixture(binaries: string): Promise<ClusterFixture> {
  const cluster = await startCluster({ binaries })
  try {
    return await addNode(cluster)
  } catch (error) {
    await cluster.stop()
    throw error
  }
}

async function addNode(cluster: Cluster): Promise<ClusterFixture> {
  await cluster.kubectl(['apply', '-f', RBAC])
  await cluster.apply(node(NODE, ['198.18.0.10', 'fd00:18::10'], 'zone-a'))
  const socket = join(cluster.directory, 'gate.sock')
  const gate = await startGate(cluster.port, socket)
  const space = await startNodeNamespace({
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
    async writeToken(secret) {
      await cluster.kubectl(['create', 'secret', 'generic', secret, '-n', 'kube-system'])
      const token = await cluster.mintToken('kube-system', 'sluice', secret)
      writeFileSync(tokenFile, token)
      return token
    },
    async clusterIps(service) {
      return JSON.parse(await cluster.kubectl(['get', 'service', service, '-o', 'json'])).spec.clusterIPs
    },
    async reaches(host, answer, limitMs = 30_000) {
      let last = ''
      const probe = async () => {
        last = await space.dial(host, 80)
        return typeof answer === 'string' ? last === answer : answer.test(last)
      }
      await until(`${host} answers ${answer}`, probe, { limitMs, everyMs: 100 }).catch((error: Error) => {
        throw new Error(`${error.message}; last answer: ${last}`)
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
