// Installs a service proxy in the cluster: Sluice from its image by its chart, or the real kube-proxy as kubeadm does.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { until } from '../support/until.ts'
import { program } from './cache.ts'
import { apiServerUrl } from './control-plane.ts'
import { apiServerAddress, podCidrs } from './network.ts'
import type { RealCluster } from './real-cluster.ts'

export type ProxyName = 'sluice' | 'kube-proxy'
export type Mode = 'nftables' | 'iptables' | 'userspace'

const chart = join(import.meta.dirname, '../../deploy/chart/sluice')

/** The size of the conntrack table belongs to the whole machine and not to a namespace: no proxy may set it. */
const conntrack = { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '24h', tcpCloseWaitTimeout: '1h' }

/** Installs the proxy, or changes the mode of the one that is there, and waits until it serves on every node. */
export async function installProxy(cluster: RealCluster, proxy: ProxyName, mode: Mode): Promise<void> {
  if (proxy === 'sluice') await installChart(cluster, { mode })
  else await applyKubeProxy(cluster, mode, cluster.images.kubeProxy)
  await waitForProxy(cluster, proxy)
}

/** `values` are merged over those that this cluster needs. */
export async function installChart(cluster: RealCluster, values: Readonly<Record<string, unknown>>): Promise<void> {
  const path = cluster.run.file('values.json')
  const own = { apiServer: { host: apiServerAddress }, clusterCIDR: podCidrs, config: { conntrack } }
  writeFileSync(path, JSON.stringify({ ...own, ...values }))
  await runHelm(cluster, ['upgrade', '--install', 'sluice', chart, '-f', path])
}

/** The image may be Sluice's, too: that is how kube-proxy is replaced on kubeadm. */
export async function applyKubeProxy(cluster: RealCluster, mode: Mode, image: string): Promise<void> {
  const manifest = readFileSync(join(import.meta.dirname, 'kube-proxy.yaml'), 'utf8')
  const replaced = manifest
    .replace('image: IMAGE', `image: ${image}`)
    .replace('mode: MODE', `mode: ${mode}`)
    .replace('"API-SERVER"', `"${apiServerUrl}"`)
    .replace('"POD-CIDRS"', `"${podCidrs}"`)
  await cluster.apply(replaced)
  // A changed ConfigMap alone starts no pods.
  await cluster.kubectl(['-n', 'kube-system', 'rollout', 'restart', 'daemonset/kube-proxy'])
}

export async function waitForProxy(cluster: RealCluster, proxy: ProxyName): Promise<void> {
  const args = ['-n', 'kube-system', 'rollout', 'status', `daemonset/${proxy}`, '--timeout=180s']
  await cluster.kubectl(args, { limitMs: 200_000 })
  const healthz = ['curl', '-sf', '-m', '5', 'http://127.0.0.1:10256/healthz']
  const limits = { limitMs: 60_000, everyMs: 500 }
  await Promise.all(cluster.nodes.map((node) => until(`${proxy} on ${node.name}`, () => node.run(healthz), limits)))
}

/** Removes the proxy and every rule that it made. */
export async function removeProxy(cluster: RealCluster, proxy: ProxyName, executable: string): Promise<void> {
  if (proxy === 'sluice') await runHelm(cluster, ['uninstall', 'sluice', '--wait', '--timeout', '120s'])
  else
    await cluster.kubectl(['-n', 'kube-system', 'delete', 'daemonset', 'kube-proxy', '--cascade=foreground'], {
      limitMs: 120_000,
    })
  // The process may outlive its pod for a moment, and its rules are not removed while it runs.
  const limits = { limitMs: 60_000, everyMs: 1_000 }
  for (const node of cluster.nodes)
    await until('the rules are removed', () => node.run([executable, 'cleanup']), limits)
}

async function runHelm(cluster: RealCluster, args: readonly string[]): Promise<string> {
  const home = cluster.run.file('helm')
  const command = [
    'env',
    `HOME=${home}`,
    program('helm'),
    '--kubeconfig',
    cluster.plane.kubeconfig,
    '-n',
    'kube-system',
    ...args,
  ]
  return await cluster.fabric.run(command, { limitMs: 180_000 })
}
