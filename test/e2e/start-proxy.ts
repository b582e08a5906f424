// Starts the program under test as the DaemonSet does: with a configuration file, a hostname override and nothing else.

import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { until } from '../support/until.ts'
import { onPath } from './binaries.ts'
import { type Child, startChild } from './child.ts'
import type { NodeNamespace } from './node-namespace.ts'

const OWN = fileURLToPath(new URL('../../bin/kube-proxy', import.meta.url))
const BUNDLE = fileURLToPath(new URL('../../dist/main.js', import.meta.url))

/** With SLUICE_E2E_PROXY the same suites test another program: kube-proxy must pass them too. */
const PROXY = process.env.SLUICE_E2E_PROXY ?? OWN
const MODE = process.env.SLUICE_E2E_MODE ?? 'nftables'

export function proxyMissing(): string | undefined {
  if (process.getuid?.() !== 0) return 'not root'
  if (!onPath('ip')) return 'there is no ip to make a network namespace with'
  if (!existsSync(PROXY)) return `there is no ${PROXY}`
  return PROXY === OWN && !existsSync(BUNDLE) ? 'bin/kube-proxy is not built: npm run build' : undefined
}

export interface RunningProxy {
  readonly child: Child
  /** Path of its configuration file. */
  readonly config: string
  metrics(): Promise<string>
  /** Returns the status code of /healthz. */
  health(): Promise<number>
}

export interface ProxyOptions {
  readonly space: NodeNamespace
  readonly directory: string
  readonly kubeconfig: string
  readonly nodeName: string
  /** Path of another program than the one under test. */
  readonly program?: string
  readonly env?: NodeJS.ProcessEnv
  /** Words between those that enter the namespace and the program. */
  readonly wrapper?: readonly string[]
  /** False to return as soon as the process runs, and not when its first sync is done. */
  readonly wait?: boolean
  /** Flags besides the configuration file and the host name. */
  readonly flags?: readonly string[]
  /** Fields of the configuration that differ from the usual ones. */
  readonly fields?: Readonly<Record<string, unknown>>
}

export async function startProxy(options: ProxyOptions): Promise<RunningProxy> {
  const { space, directory } = options
  const config = join(directory, 'config.conf')
  writeFileSync(config, JSON.stringify({ ...configuration(options.kubeconfig), ...options.fields }))
  const child = startChild({
    wrapper: [...space.enter, ...(options.wrapper ?? [])],
    program: options.program ?? PROXY,
    args: [`--config=${config}`, `--hostname-override=${options.nodeName}`, ...(options.flags ?? [])],
    log: join(directory, `proxy-${++count}.log`),
    ...(options.env === undefined ? {} : { env: options.env }),
  })
  const fetch = async (url: string) => {
    if (!child.running) throw new Error(`the proxy has exited: ${child.output().slice(-2_000)}`)
    return space.fetch(url)
  }
  const proxy: RunningProxy = {
    child,
    config,
    metrics: async () => (await fetch('http://127.0.0.1:10249/metrics')).body,
    health: async () => (await fetch('http://127.0.0.1:10256/healthz')).status,
  }
  if (options.wait === false) return proxy
  try {
    await until('proxy synced', async () => (await figure(proxy, SYNCED)) > 0, { limitMs: 60_000, everyMs: 200 })
  } catch (error) {
    await child.end('SIGKILL')
    throw new Error(`the proxy did not sync: ${child.output().slice(-4_000)}`, { cause: error })
  }
  return proxy
}

let count = 0
const SYNCED = 'kubeproxy_sync_proxy_rules_last_timestamp_seconds'

/** Returns the largest sample of a metric over all its labels. */
async function figure(proxy: RunningProxy, name: string): Promise<number> {
  const lines = (await proxy.metrics())
    .split('\n')
    .filter((line) => line.startsWith(name) && /[ {]/.test(line[name.length]!))
  return Math.max(0, ...lines.map((line) => Number(line.slice(line.lastIndexOf(' ') + 1))))
}

function configuration(kubeconfig: string): Record<string, unknown> {
  return {
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    clientConnection: { kubeconfig },
    mode: MODE,
    clusterCIDR: '10.244.0.0/16,fd00:244::/48',
    healthzBindAddress: '127.0.0.1:10256',
    metricsBindAddress: '127.0.0.1:10249',
    // The size of the conntrack table is a setting of the whole machine, not of a network namespace.
    conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
  }
}
