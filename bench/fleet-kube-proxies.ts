// Real kube-proxies for bench/fleet.ts, each in a network namespace of its own, which a bridge connects with the API server.

import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Child, startChild } from '../test/e2e/child.ts'
import { until } from '../test/support/until.ts'
import { type FleetCluster, serverAddress } from './fleet-cluster.ts'
import { renderKubeconfig } from './fleet-nodes.ts'

const bridge = 'fleet'
const ip = (...args: readonly string[]) => execFileSync('ip', args, { stdio: 'pipe' })

/** Gives the API server its address, before it starts. */
export function addBridge(): void {
  ip('link', 'add', bridge, 'type', 'bridge')
  ip('address', 'add', `${serverAddress}/16`, 'dev', bridge)
  ip('link', 'set', bridge, 'up')
}

export class KubeProxies {
  readonly count: number
  readonly #program: string
  readonly #cluster: FleetCluster
  readonly #tokens: readonly string[]
  readonly #children: Child[] = []
  readonly #namespaces: string[] = []

  constructor(program: string, cluster: FleetCluster, tokens: readonly string[]) {
    this.count = tokens.length
    this.#program = program
    this.#cluster = cluster
    this.#tokens = tokens
  }

  /** Makes the namespaces and the Node objects, which is not a part of the start. */
  async prepare(): Promise<void> {
    process.setMaxListeners(2 * this.count) // each child process waits for the end of this one
    process.once('exit', this.#removeNamespaces)
    for (let n = 0; n < this.count; n++) {
      const name = `sluice-fleet-${process.pid}-${n}`
      ip('netns', 'add', name)
      this.#namespaces.push(name)
      ip('link', 'add', `fleet${n}`, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name)
      ip('link', 'set', `fleet${n}`, 'master', bridge, 'up')
      ip('-netns', name, 'link', 'set', 'lo', 'up')
      ip('-netns', name, 'address', 'add', `${addressOf(n)}/16`, 'dev', 'eth0')
      ip('-netns', name, 'link', 'set', 'eth0', 'up')
      ip('-netns', name, 'route', 'add', 'default', 'via', serverAddress)
      await this.#cluster.addNode(`real-${n}`, addressOf(n))
    }
  }

  /** Resolves when all have programmed everything. */
  async start(): Promise<void> {
    for (let n = 0; n < this.count; n++) this.#startOne(n)
    for (let n = 0; n < this.count; n++) {
      const hasSynced = () => hasProgrammed(addressOf(n))
      await until(`kube-proxy ${n} has programmed its rules`, hasSynced, { limitMs: 120_000, everyMs: 200 })
    }
  }

  async stop(): Promise<void> {
    await Promise.all(this.#children.map((child) => child.end('SIGKILL')))
    this.#removeNamespaces()
    process.removeListener('exit', this.#removeNamespaces)
  }

  readonly #removeNamespaces = () => {
    for (const name of this.#namespaces.splice(0)) ip('netns', 'delete', name)
  }

  #startOne(n: number): void {
    const { directory, server, authority } = this.#cluster
    const file = (suffix: string) => join(directory, `kube-proxy-${n}.${suffix}`)
    writeFileSync(file('kubeconfig'), renderKubeconfig(server, authority, this.#tokens[n] as string), { mode: 0o600 })
    writeFileSync(
      file('config'),
      JSON.stringify({
        apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
        kind: 'KubeProxyConfiguration',
        clientConnection: { kubeconfig: file('kubeconfig') },
        hostnameOverride: `real-${n}`,
        mode: 'nftables',
        clusterCIDR: '10.128.0.0/9',
        // What it programs is not measured here, and twenty of them would keep the machine busy with it.
        nftables: { minSyncPeriod: '20s', syncPeriod: '1h' },
        metricsBindAddress: '0.0.0.0:10249',
        conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
      }),
    )
    const wrapper = ['ip', 'netns', 'exec', this.#namespaces[n] as string]
    this.#children.push(
      startChild({ wrapper, program: this.#program, args: [`--config=${file('config')}`], log: file('log') }),
    )
  }
}

const addressOf = (n: number): string => `10.200.1.${n + 1}`

/** Its /healthz is positive before it has read anything. */
async function hasProgrammed(address: string): Promise<boolean> {
  const response = await fetch(`http://${address}:10249/metrics`, { signal: AbortSignal.timeout(2_000) })
  return /^kubeproxy_sync_proxy_rules_last_timestamp_seconds\S* [1-9]/m.test(await response.text())
}
