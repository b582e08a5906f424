// Finds the programs and images of the cluster tier in the cache that test/cluster/build fills, or says what is missing.

import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'

const root = process.env.SLUICE_CACHE ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'sluice')

export const kubernetesVersion = 'v1.36.4'
export const cacheFolder = join(root, `cluster-${kubernetesVersion}`)

export type Program =
  | 'etcd'
  | 'kube-apiserver'
  | 'kube-controller-manager'
  | 'kube-scheduler'
  | 'kubelet'
  | 'kubectl'
  | 'kube-proxy'
  | 'containerd'
  | 'ctr'
  | 'coredns'
  | 'helm'
  | 'ginkgo'
  | 'e2e.test'
  | 'agnhost'

export const program = (name: Program | string): string => join(cacheFolder, 'bin', name)

/** The archive with every image that upstream's tests, CoreDNS and the real kube-proxy need. */
export const imageArchive = join(cacheFolder, 'images', 'tests.tar')

const needed = [
  ...['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kubelet', 'kubectl', 'containerd', 'ctr'],
  ...['containerd-shim-runc-v2', 'helm', 'ginkgo', 'e2e.test'],
]

/** Says why the tier cannot run here, or returns undefined if it can. */
export function whyNot(): string | undefined {
  if (process.getuid?.() !== 0) return 'it needs root'
  const absent = needed.filter((name) => !existsSync(program(name)))
  if (!existsSync(imageArchive)) absent.push('images')
  if (absent.length > 0) return `no ${absent.join(', ')} in ${cacheFolder}; fill it once with test/cluster/build`
  for (const path of ['/usr/sbin/runc', '/usr/lib/cni/bridge']) {
    if (!existsSync(path)) return `no ${path}; test/cluster/build installs it`
  }
  return undefined
}
