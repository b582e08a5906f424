// Starts a proxy, ours or the real kube-proxy, with the same configuration for a scripted API server.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { nodeBinary } from '../packaging/inputs.ts'
import { nodeOptions } from '../packaging/node-options.ts'
import { nodeFlags, script } from './node-flags.ts'

export interface ProxyProgram {
  readonly program: readonly string[]
  readonly mode: 'nftables' | 'iptables'
}

export interface ProxyPlace {
  /** The port of the API server. */
  readonly port: number
  /** Where the files of the configuration are written. */
  readonly folder: string
  /** 1 ms if absent. Zero would mean one second. */
  readonly minSyncPeriod?: string
  readonly env?: NodeJS.ProcessEnv
}

/** Sluice as it can be run here. */
export interface OwnProgram {
  readonly name: string
  readonly program: readonly string[]
  /** The Node that runs it, with its flags, to run a part of it alone. */
  readonly node: readonly string[]
  /** True if Node can be given flags: the single executable takes none. */
  readonly isScript: boolean
}

/** The single executable if `npm run package` has made it, and the bundle with this Node and the flags of bin/kube-proxy. */
export function findOwnPrograms(): readonly OwnProgram[] {
  const executable = join(import.meta.dirname, '../dist/package/sluice-linux-amd64')
  const node = [process.execPath, ...nodeFlags()]
  const bundle = { name: `Sluice, Node ${process.versions.node}`, program: [...node, script], node, isScript: true }
  if (!existsSync(executable)) return [bundle]
  const carried = [nodeBinary('amd64'), ...nodeOptions]
  return [{ name: 'Sluice, executable', program: [executable, 'proxy'], node: carried, isScript: false }, bundle]
}

/** The program that test/e2e/build-cluster builds. */
export function findKubeProxy(): string {
  const script = join(import.meta.dirname, '../test/e2e/build-cluster')
  const { stdout } = spawnSync(script, ['--where'], { encoding: 'utf8' })
  return join(stdout.trim(), 'kube-proxy')
}

export function startProxy({ program, mode }: ProxyProgram, place: ProxyPlace): ChildProcess {
  const { port, folder, minSyncPeriod = '1ms', env = {} } = place
  const kubeconfig = join(folder, 'kubeconfig')
  writeFileSync(
    kubeconfig,
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'b', cluster: { server: `http://127.0.0.1:${port}` } }],
      contexts: [{ name: 'b', context: { cluster: 'b', user: 'b' } }],
      users: [{ name: 'b', user: {} }],
      'current-context': 'b',
    }),
  )
  const config = join(folder, 'config')
  writeFileSync(
    config,
    JSON.stringify({
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      clientConnection: { kubeconfig },
      mode,
      clusterCIDR: '10.128.0.0/9',
      nftables: { minSyncPeriod },
      iptables: { minSyncPeriod },
      healthzBindAddress: '127.0.0.1:10256',
      metricsBindAddress: '127.0.0.1:10249',
      conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
    }),
  )
  const isVerbose = process.env.BENCH_VERBOSE !== undefined
  const verbosity = isVerbose ? ['--v=2'] : []
  const [command = '', ...args] = [...program, `--config=${config}`, '--hostname-override=node-7', ...verbosity]
  const stdio = isVerbose ? 'inherit' : 'ignore'
  return spawn(command, args, { stdio: ['ignore', stdio, stdio], env: { ...process.env, ...env } })
}
