// The names of the images in the cluster, as upstream's tests ask for them. No registry is reachable: all of them are imported by hand.

import { execFileSync } from 'node:child_process'
import { kubernetesVersion, program } from './cache.ts'

export interface ImageNames {
  readonly agnhost: readonly string[]
  readonly pause: readonly string[]
  /** Images of which the tests use the shell and the network tools. */
  readonly shells: readonly string[]
  readonly regression: string
  readonly coredns: string
  readonly kubeProxy: string
}

/** Asks e2e.test, which takes a second. */
export function imageNames(): ImageNames {
  const listed = execFileSync(program('e2e.test'), ['--list-images'], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  const all = listed.trim().split(/\s+/)
  const find = (pattern: RegExp) => all.filter((name) => pattern.test(name))
  const pause = find(/\/pause:/)
  const registry = (pause[0] as string).split('/').slice(0, -1).join('/')
  return {
    agnhost: find(/e2e-test-images\/agnhost:(?!2\.6$)/),
    pause,
    shells: find(/\/(?:busybox|distroless-iptables|glibc-dns-testing):/),
    regression: find(/\/regression-issue-74839:/)[0] as string,
    coredns: `${registry}/coredns/coredns:trimmed`,
    kubeProxy: `${registry}/kube-proxy:${kubernetesVersion}`,
  }
}
