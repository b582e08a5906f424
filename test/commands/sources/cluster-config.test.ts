import { describe, expect, it } from 'vitest'
import { readClusterConfig } from '../../../src/commands/sources/cluster-config.ts'
import type { ApiRequester } from '../../../src/kube/api-objects.ts'
import { ProxyError } from '../../../src/lib/errors.ts'

/** As kubeadm writes it, shortened: the kind is not the first field, and another file is beside it. */
const kubeadm = {
  'config.conf': `apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
clusterCIDR: 10.244.0.0/16
conntrack:
  maxPerCore: null
detectLocalMode: ""
iptables:
  masqueradeAll: false
  syncPeriod: 0s
kind: KubeProxyConfiguration
mode: iptables
nodePortAddresses: null
`,
  'kubeconfig.conf': 'apiVersion: v1\nkind: Config\n',
}

const ours = (cidr: string) => ({
  'config.conf': `apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: ${cidr}\n`,
  'sluice.conf': 'apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\n',
})

const pod = (node: string, configMap: string, phase = 'Running') => ({
  metadata: { name: `proxy-${node}`, namespace: 'kube-system', labels: { 'k8s-app': 'kube-proxy' } },
  spec: {
    nodeName: node,
    containers: [{ name: 'kube-proxy', image: 'sluice' }],
    volumes: [
      { name: 'config', configMap: { name: configMap } },
      { name: 'run', hostPath: { path: '/run' } },
    ],
  },
  status: { phase },
})

interface FakeCluster {
  readonly maps: Readonly<Record<string, unknown>>
  readonly pods?: readonly ReturnType<typeof pod>[]
  /** The caller may not list pods. */
  readonly podsForbidden?: boolean
}

const clusterWith = ({ maps, pods = [], podsForbidden = false }: FakeCluster): ApiRequester => ({
  async request({ path, query }) {
    if (path.endsWith('/pods')) {
      if (podsForbidden) throw new ProxyError('forbidden', 'pods is forbidden')
      const items = pods.filter(({ spec }) => query?.fieldSelector === `spec.nodeName=${spec.nodeName}`)
      return { status: 200, json: { metadata: { resourceVersion: '1' }, items } } as never
    }
    const name = /^\/api\/v1\/namespaces\/kube-system\/configmaps\/([\w-]+)$/.exec(path)?.[1] ?? ''
    if (!(name in maps)) throw new ProxyError('not-found', `configmaps "${name}" not found`)
    return { status: 200, json: { kind: 'ConfigMap', data: maps[name] } } as never
  },
})

const read = async (cluster: FakeCluster, node = 'a') => {
  const config = await readClusterConfig(clusterWith(cluster), 'kube-system', node)
  return config && [config.mode, ...config.clusterCIDRs]
}

describe('the configuration of the proxies of a cluster', () => {
  it('is read from kube-proxy’s ConfigMap as kubeadm writes it', async () => {
    const pods = [pod('a', 'kube-proxy')]
    expect(await read({ maps: { 'kube-proxy': kubeadm }, pods })).toEqual(['iptables', '10.244.0.0/16'])
  })

  it('is that of the pod on the node, whatever the name of its ConfigMap and whatever else is there', async () => {
    const maps = {
      'kube-proxy': kubeadm,
      'sluice-4784kffh58': ours('10.1.0.0/16'),
      'sluice-7m2k9gd4tb': ours('10.2.0.0/16'),
    }
    const pods = [pod('a', 'sluice-4784kffh58'), pod('b', 'sluice-7m2k9gd4tb'), pod('b', 'kube-proxy', 'Failed')]
    expect(await read({ maps, pods }, 'a')).toEqual(['nftables', '10.1.0.0/16'])
    expect(await read({ maps, pods }, 'b')).toEqual(['nftables', '10.2.0.0/16'])
  })

  it('is looked for by the usual names where no pod can be seen, ours first', async () => {
    const maps = { 'kube-proxy': kubeadm, sluice: ours('10.1.0.0/16') }
    for (const cluster of [{ maps }, { maps, podsForbidden: true }]) {
      expect(await read(cluster)).toEqual(['nftables', '10.1.0.0/16'])
    }
    expect(await read({ maps: { 'kube-proxy': kubeadm } })).toEqual(['iptables', '10.244.0.0/16'])
  })

  it.each([
    ['there is none', { maps: {} }],
    ['it is not of this kind', { maps: { 'kube-proxy': { 'config.conf': 'kind: Other\n' } } }],
    [
      'this version does not understand it',
      { maps: { sluice: { 'config.conf': `${ours('10.1.0.0/16')['config.conf']}bindAddress: nowhere\n` } } },
    ],
    ['the pod has its configuration elsewhere', { maps: { 'kube-proxy': kubeadm }, pods: [pod('a', '')] }],
  ])('is unknown if %s', async (_why, cluster: FakeCluster) => {
    expect(await read(cluster)).toBeUndefined()
  })
})
