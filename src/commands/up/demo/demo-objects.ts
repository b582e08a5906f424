// The objects of the demo's API server: nodes, pods, services, and the second pod that scaling adds.

import { stringify } from 'yaml'
import { nodeStatus } from '../node-status.ts'
import { nodes, type Pod, pods } from './demo-network.ts'

export const redis = { clusterIp: '10.103.193.175', port: 6379, nodePort: 31_269 } as const
export const hello = { clusterIp: '10.96.0.80', port: 80 } as const
/** A service without pods. */
export const empty = { clusterIp: '10.96.0.99', port: 80 } as const
export const serviceCidr = '10.96.0.0/12'
/** The cluster IP of default/kubernetes: the first of the range. */
export const kubernetesIp = '10.96.0.1'
export const clusterCidr = '10.32.0.0/16'

interface Creation {
  readonly path: string
  readonly body: object
}

export function creations(): readonly Creation[] {
  return [
    { path: '/api/v1/namespaces', body: { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'work' } } },
    ...Object.entries(nodes).map(([name, { ip, podCidr }]) => ({
      path: '/api/v1/nodes',
      body: {
        apiVersion: 'v1',
        kind: 'Node',
        metadata: { name, labels: { 'kubernetes.io/hostname': name } },
        spec: { podCIDR: podCidr, podCIDRs: [podCidr] },
        status: nodeStatus([ip]),
      },
    })),
    ...pods.filter(({ name }) => name !== 'saythx-redis-2').map(podCreation),
    service('work', 'saythx-redis', { app: 'saythx-redis' }, redis),
    service('default', 'hello', { app: 'hello' }, { ...hello, targetPort: 8080 }),
    service('default', 'nobody', { app: 'nobody' }, empty),
  ]
}

export const podCreation = (pod: Pod): Creation => ({
  path: `/api/v1/namespaces/${pod.namespace}/pods`,
  body: podObject(pod),
})

export const podPath = (pod: Pod): string => `/api/v1/namespaces/${pod.namespace}/pods/${pod.name}`

const podObject = (pod: Pod) => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: pod.name, namespace: pod.namespace, labels: { app: pod.app } },
  spec: {
    nodeName: pod.node,
    containers: [{ name: pod.app, image: 'echo', ...(pod.port === 0 ? {} : { ports: [{ containerPort: pod.port }] }) }],
  },
  status: { phase: 'Running', podIP: pod.ip, conditions: [{ type: 'Ready', status: 'True' }] },
})

interface Ports {
  readonly clusterIp: string
  readonly port: number
  readonly nodePort?: number
  readonly targetPort?: number
}

function service(namespace: string, name: string, selector: object, ports: Ports): Creation {
  const { clusterIp, port, nodePort, targetPort = port } = ports
  return {
    path: `/api/v1/namespaces/${namespace}/services`,
    body: {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name, namespace },
      spec: {
        type: nodePort === undefined ? 'ClusterIP' : 'NodePort',
        clusterIP: clusterIp,
        selector,
        ports: [{ port, targetPort, protocol: 'TCP', ...(nodePort === undefined ? {} : { nodePort }) }],
      },
    },
  }
}

export const secondRedis = pods.find(({ name }) => name === 'saythx-redis-2') as Pod

/** Returns the second pod as a file for `kubectl apply -f` and `kubectl delete -f`. */
export const scaleManifest = (): string =>
  `# The second pod of work/saythx-redis: apply scales from 1 to 2, delete scales back.\n${stringify(podObject(secondRedis))}`
