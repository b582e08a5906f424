// The service of the stories: a Deployment of web servers that end gracefully, and clients in a pod, on a node and outside.

import { until } from '../support/until.ts'
import { type Client, startClientPod } from './probes.ts'
import type { RealCluster } from './real-cluster.ts'

export const namespace = 'stories'
const nodePort = 30080

/** Pods serve for ten more seconds after SIGTERM, as a program behind a service should, so that no failure is the program's fault. */
const deployment = (image: string, replicas: number) => ({
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'web', namespace },
  spec: {
    replicas,
    selector: { matchLabels: { app: 'web' } },
    strategy: { type: 'RollingUpdate', rollingUpdate: { maxUnavailable: 0, maxSurge: '20%' } },
    template: {
      metadata: { labels: { app: 'web' } },
      spec: {
        terminationGracePeriodSeconds: 40,
        topologySpreadConstraints: [
          {
            maxSkew: 1,
            topologyKey: 'kubernetes.io/hostname',
            whenUnsatisfiable: 'ScheduleAnyway',
            labelSelector: { matchLabels: { app: 'web' } },
          },
        ],
        containers: [
          {
            name: 'web',
            image,
            // It reports that it is ready only when its UDP server runs.
            args: ['netexec', '--http-port=8080', '--udp-port=8081', '--delay-shutdown=15'],
            readinessProbe: { httpGet: { path: '/readyz', port: 8080 }, periodSeconds: 2 },
          },
        ],
      },
    },
  },
})

const service = {
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name: 'web', namespace },
  spec: { type: 'NodePort', selector: { app: 'web' }, ports: [{ port: 80, targetPort: 8080, nodePort }] },
}

export interface Workload {
  readonly clients: readonly Client[]
  scale(replicas: number): Promise<void>
  waitForRollout(): Promise<void>
}

/** Creates the service and its clients; a second call finds them there. */
export async function createWorkload(cluster: RealCluster, replicas: number): Promise<Workload> {
  const [first, second] = cluster.nodes
  if (first === undefined || second === undefined) throw new Error('the stories need two nodes')
  const kubectl = (...args: string[]) => cluster.kubectl(['-n', namespace, ...args], { limitMs: 320_000 })
  await cluster.apply(JSON.stringify({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } }))
  await cluster.apply(JSON.stringify(deployment(cluster.images.agnhost[0] as string, replicas)))
  await cluster.apply(JSON.stringify(service))
  const waitForRollout = async () => void (await kubectl('rollout', 'status', 'deployment/web', '--timeout=300s'))
  await waitForRollout()
  // Pods of a larger Deployment before: their end must not be counted as this story's.
  const countPods = async () => (await kubectl('get', 'pods', '-l', 'app=web', '-o', 'name')).trim().split('\n').length
  await until('the end of old pods', async () => (await countPods()) === replicas, { limitMs: 120_000, everyMs: 1_000 })
  const address = await kubectl('get', 'service', 'web', '-o', 'jsonpath={.spec.clusterIP}')
  const pod = await startClientPod(cluster, first, namespace)
  const clusterIp = `cluster IP=http://${address}/hostname`
  return {
    clients: [
      { name: 'pod', prefix: pod, targets: [clusterIp] },
      { name: 'node', prefix: first.prefix, targets: [clusterIp] },
      {
        name: 'outside',
        prefix: cluster.fabric.prefix,
        targets: [first, second].map(
          ({ name, addresses }) => `node port of ${name}=http://${addresses[0]}:${nodePort}/hostname`,
        ),
      },
    ],
    scale: async (count) => void (await kubectl('scale', 'deployment/web', `--replicas=${count}`)),
    waitForRollout,
  }
}
