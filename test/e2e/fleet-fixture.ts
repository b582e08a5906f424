// A cluster with several nodes, each with a proxy in a network namespace and a gate of its own; and one node where kube-proxy is said to run.

import { execFile } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Cluster, startCluster } from './cluster.ts'
import { RBAC } from './cluster-fixture.ts'
import { type Gate, startGate } from './gate.ts'
import { list } from './kubectl-manifests.ts'
import { type KubeletStandIn, startKubeletStandIn } from './kubelet-stand-in.ts'
import { type NodeNamespace, startNodeNamespace } from './node-namespace.ts'
import { type RunningProxy, startProxy } from './start-proxy.ts'

const FLEET = fileURLToPath(new URL('../../deploy/fleet.yaml', import.meta.url))
const SLUICE = fileURLToPath(new URL('../../bin/sluice', import.meta.url))
const INTERVAL_SECONDS = 4

export interface FleetNode {
  readonly name: string
  readonly gate: Gate
  readonly space: NodeNamespace
  readonly proxy: RunningProxy
  /** Token of the pod of the proxy. */
  readonly token: string
  /** Starts a successor of a proxy that has ended. */
  restart(): Promise<void>
}

export interface Ran {
  readonly status: number
  readonly stdout: string
  readonly stderr: string
}

export interface FleetFixture {
  readonly cluster: Cluster
  readonly nodes: readonly FleetNode[]
  readonly kubelet: KubeletStandIn
  /** Kubeconfig of a member of sluice:operators who has no other right. */
  readonly operator: string
  /** Runs `sluice` as the operator. */
  sluice(...args: readonly string[]): Promise<Ran>
  stop(): Promise<void>
}

export async function startFleetFixture(binaries: string, names: readonly string[]): Promise<FleetFixture> {
  const cluster = await startCluster({ binaries })
  const closers: (() => Promise<unknown>)[] = [() => cluster.stop()]
  const stop = async () => {
    for (const close of closers.reverse()) await close()
  }
  try {
    await cluster.kubectl(['apply', '-f', RBAC])
    await cluster.kubectl(['apply', '-f', FLEET])
    const environments = new Map(names.map((name) => [`sluice-${name}`, socketOf(cluster, name)]))
    const kubelet = await startKubeletStandIn(cluster.authority, environments)
    closers.push(() => kubelet.stop())
    await createNodes(cluster, names, kubelet.port)
    const nodes: FleetNode[] = []
    for (const [i, name] of names.entries()) {
      const node = await startNode(cluster, name, i + 1, closers)
      nodes.push(node)
    }
    await cluster.authority.issue('operator', '/O=sluice:operators/CN=olga')
    const operator = cluster.writeKubeconfig('operator', { certificate: 'operator' })
    return { cluster, nodes, kubelet, operator, sluice: (...args) => run(SLUICE, args, { KUBECONFIG: operator }), stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** The admin socket of a node's proxy. */
export const socketPathOf = ({ directory }: Cluster, name: string): string => join(directory, `${name}.sock`)

const socketOf = (cluster: Cluster, name: string): NodeJS.ProcessEnv => ({
  SLUICE_ADMIN_SOCKET: socketPathOf(cluster, name),
})

/** The pods have a node and run, as the kubelets would say. No kubelet starts containers for them. */
async function createNodes(cluster: Cluster, names: readonly string[], kubeletPort: number): Promise<void> {
  const all = [...names, 'old-1']
  await cluster.apply(list(...all.map((name, i) => nodeObject(name, i + 1, kubeletPort)), ...all.map(podObject)))
  for (const name of all) {
    const status = JSON.stringify({ status: { phase: 'Running' } })
    await cluster.kubectl(['patch', 'pod', podName(name), '-n', 'kube-system', '--subresource=status', '-p', status])
  }
}

const podName = (node: string): string => (node === 'old-1' ? 'kube-proxy-x7k2p' : `sluice-${node}`)

const nodeObject = (name: string, number: number, port: number): string =>
  JSON.stringify({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name },
    status: {
      addresses: [
        { type: 'Hostname', address: '127.0.0.1' }, // where kube-apiserver looks for the kubelet first
        { type: 'InternalIP', address: `198.18.0.${number}` },
      ],
      daemonEndpoints: { kubeletEndpoint: { Port: port } },
    },
  })

const podObject = (node: string): string =>
  JSON.stringify({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: podName(node), namespace: 'kube-system', labels: { 'k8s-app': 'kube-proxy' } },
    spec: {
      nodeName: node,
      hostNetwork: true,
      serviceAccountName: 'sluice',
      // As kubeadm's pods have it.
      ...(node === 'old-1' ? { volumes: [{ name: 'kube-proxy', configMap: { name: 'kube-proxy' } }] } : {}),
      containers: [
        {
          name: 'kube-proxy',
          image: node === 'old-1' ? 'registry.k8s.io/kube-proxy:v1.36.4' : 'sluice:nftables-0.1.0',
        },
      ],
    },
  })

async function startNode(
  cluster: Cluster,
  name: string,
  number: number,
  closers: (() => Promise<unknown>)[],
): Promise<FleetNode> {
  const directory = join(cluster.directory, name)
  mkdirSync(directory)
  const socket = join(directory, 'gate.sock')
  const gate = await startGate(cluster.port, socket)
  closers.push(() => gate.stop())
  const space = await startNodeNamespace({
    suffix: `-${number}`,
    directory,
    gate: socket,
    nodeIps: [`198.18.0.${number}`],
    endpointIps: ['10.244.1.1', '10.244.1.2'],
    endpointPort: 8080,
  })
  closers.push(() => space.stop())
  const token = await cluster.mintPodToken('kube-system', 'sluice', podName(name))
  const kubeconfig = cluster.writeKubeconfig(name, { token }, space.server)
  const config = join(directory, 'sluice.conf')
  const fleet = { namespace: 'sluice-nodes', interval: `${INTERVAL_SECONDS}s` }
  writeFileSync(config, JSON.stringify({ apiVersion: 'sluice/v1alpha1', kind: 'SluiceConfiguration', fleet }))
  const start = async (): Promise<RunningProxy> => {
    const env = { ...process.env, ...socketOf(cluster, name) }
    const flags = [`--sluice-config=${config}`]
    const proxy = await startProxy({ space, directory, kubeconfig, nodeName: name, env, flags })
    closers.push(() => proxy.child.end('SIGTERM'))
    return proxy
  }
  return { name, gate, space, proxy: await start(), token, restart: async () => void (await start()) }
}

export function run(program: string, args: readonly string[], env: NodeJS.ProcessEnv): Promise<Ran> {
  return new Promise((resolve) => {
    const options = { timeout: 60_000, maxBuffer: 64 << 20, env: { ...process.env, ...env } }
    execFile(program, args, options, (error, stdout, stderr) => {
      const failure = typeof error?.code === 'number' ? error.code : -1
      resolve({ status: error === null ? 0 : failure, stdout, stderr })
    })
  })
}
