// The flags of a proxy whose privileges are tested. Its API server has a name, so that the proxy must look it up.

import { nodeName } from '../scenarios/expand.ts'

export const apiPort = 8001

export const proxyFlags = (mode: string): readonly string[] => [
  ...[`--master=http://api.sluice.test:${apiPort}`, `--proxy-mode=${mode}`, `--hostname-override=${nodeName}`],
  ...['--cluster-cidr=10.0.0.0/8', '--conntrack-max-per-core=0', '--conntrack-tcp-timeout-established=0'],
  ...['--conntrack-tcp-timeout-close-wait=0', '--healthz-bind-address=0.0.0.0:10256', '--profiling', '--v=4'],
]

/** What the init container of the manifests runs, with all privileges. */
export const initCommand = (program: readonly string[], mode: string): string =>
  [...program, ...proxyFlags(mode).map((flag) => flag.replace('api.sluice.test', '127.0.0.1')), '--init-only'].join(' ')
