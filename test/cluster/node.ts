// A node of the cluster: containerd and kubelet on a machine of their own.

import { mkdirSync, writeFileSync } from 'node:fs'
import { until } from '../support/until.ts'
import { imageArchive, program } from './cache.ts'
import type { ControlPlane } from './control-plane.ts'
import type { Daemon } from './namespaces.ts'
import type { NodeMachine } from './network.ts'
import type { RunFolder } from './run-folder.ts'

const startLimit = { limitMs: 180_000, everyMs: 250 }

export interface NodeSetup {
  readonly machine: NodeMachine
  readonly run: RunFolder
  readonly plane: ControlPlane
  readonly pauseImage: string
}

/** Returns the kubelet when the node is registered. */
export async function startNode({ machine, run, plane, pauseImage }: NodeSetup): Promise<Daemon> {
  const { name, addresses, pods, zone } = machine
  const folder = run.file(name)
  mkdirSync(`${folder}/etc/cni/net.d`, { recursive: true })
  writeFileSync(`${folder}/etc/cni/net.d/10-pods.conflist`, JSON.stringify(podNetwork(pods)))
  writeFileSync(`${folder}/containerd.toml`, containerdConfig(pauseImage))
  writeFileSync(`${folder}/kubelet.json`, JSON.stringify(kubeletConfig(run.file('ca.crt'), run.createCgroup(name))))
  // containerd looks for its shim in PATH.
  const env = { PATH: `${program('')}:${process.env.PATH}` }
  machine.start(`containerd-${name}`, [program('containerd'), '-c', `${folder}/containerd.toml`], env)
  await until(`containerd on ${name}`, () => machine.run([program('ctr'), 'version']), startLimit)
  await importImages(machine, imageArchive)
  const kubeconfig = await plane.issueUser(name, `/O=system:nodes/CN=system:node:${name}`)
  const kubelet = machine.start(`kubelet-${name}`, [
    program('kubelet'),
    `--config=${folder}/kubelet.json`,
    `--kubeconfig=${kubeconfig}`,
    `--hostname-override=${name}`,
    `--node-ip=${addresses.join(',')}`,
    `--node-labels=topology.kubernetes.io/zone=${zone}`,
    '--cert-dir=/run/kubelet-pki',
    '--v=2',
  ])
  await until(`node ${name}`, () => plane.kubectl(['get', 'node', name]), startLimit)
  await plane.kubectl(['patch', 'node', name, '-p', JSON.stringify({ spec: { podCIDR: pods[0], podCIDRs: pods } })])
  return kubelet
}

export async function importImages(machine: NodeMachine, archive: string): Promise<void> {
  await machine.run([program('ctr'), '-n', 'k8s.io', 'images', 'import', archive], { limitMs: 180_000 })
}

const podNetwork = ([v4, v6]: readonly [string, string]) => ({
  cniVersion: '1.0.0',
  name: 'pods',
  plugins: [
    {
      type: 'bridge',
      bridge: 'cni0',
      isGateway: true,
      hairpinMode: true,
      ipMasq: false,
      ipam: {
        type: 'host-local',
        dataDir: '/run/cni-ipam',
        ranges: [[{ subnet: v4 }], [{ subnet: v6 }]],
        routes: [{ dst: '0.0.0.0/0' }, { dst: '::/0' }],
      },
    },
    { type: 'portmap', capabilities: { portMappings: true }, snat: true },
  ],
})

/** Without CAP_SYS_RESOURCE, nothing may lower its oom_score_adj: runc fails if containerd asks it to. */
const containerdConfig = (pauseImage: string): string => `version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '${pauseImage}'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni']
    conf_dir = '/etc/cni/net.d'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.internal.v1.opt']
  path = '/var/lib/containerd/opt'
`

/** Each node has a cgroup of its own. Disk figures stay on: a spec evicts a pod for what it writes. */
const kubeletConfig = (authority: string, cgroup: string) => ({
  apiVersion: 'kubelet.config.k8s.io/v1beta1',
  kind: 'KubeletConfiguration',
  authentication: {
    x509: { clientCAFile: authority },
    anonymous: { enabled: false },
    webhook: { enabled: true },
  },
  authorization: { mode: 'Webhook' },
  clusterDNS: ['10.96.0.10'],
  clusterDomain: 'cluster.local',
  containerRuntimeEndpoint: 'unix:///run/containerd/containerd.sock',
  cgroupDriver: 'cgroupfs',
  cgroupRoot: cgroup,
  enforceNodeAllocatable: [],
  failCgroupV1: false,
  failSwapOn: false,
  resolvConf: '/run/resolv.conf',
  evictionHard: {
    'memory.available': '50Mi',
    'nodefs.available': '1%',
    'imagefs.available': '1%',
    'nodefs.inodesFree': '1%',
  },
  imageGCHighThresholdPercent: 100,
  makeIPTablesUtilChains: false,
  syncFrequency: '30s',
})
