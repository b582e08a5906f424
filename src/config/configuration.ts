// The configuration as the proxy uses it, the v1alpha1 document it comes from, and the way between the two.

import { isZero, type Setting, writeValue } from './setting.ts'
import { fieldSettings } from './settings-table.ts'
import type { VerbosityRule } from './text.ts'
import type { Value } from './values.ts'

type Mode = 'userspace' | 'iptables' | 'ipvs' | 'nftables'
type LocalMode = 'ClusterCIDR' | 'NodeCIDR' | 'BridgeInterface' | 'InterfaceNamePrefix'

export const apiVersion = 'kubeproxy.config.k8s.io/v1alpha1'
export const documentKind = 'KubeProxyConfiguration'

interface StreamOptions {
  readonly splitStream: boolean
  /** A Kubernetes quantity. */
  readonly infoBufferSize: string
}

interface Logging {
  readonly format: string
  readonly flushFrequency: number
  readonly verbosity: number
  readonly vmodule: readonly VerbosityRule[]
  readonly options: { readonly text: StreamOptions; readonly json: StreamOptions }
}

interface Periods {
  readonly syncPeriod: number
  readonly minSyncPeriod: number
}

interface IpvsSettings {
  readonly scheduler: string
  readonly excludeCIDRs: readonly string[]
  readonly strictARP: boolean
  readonly tcpTimeout: number
  readonly tcpFinTimeout: number
  readonly udpTimeout: number
}

interface Conntrack {
  readonly maxPerCore: number
  readonly min: number
  readonly tcpEstablishedTimeout: number
  readonly tcpCloseWaitTimeout: number
  readonly tcpBeLiberal: boolean
  readonly udpTimeout: number
  readonly udpStreamTimeout: number
}

/** What v1alpha1 and the internal form have in common, field for field. */
interface Shared {
  readonly featureGates: Readonly<Record<string, boolean>>
  readonly clientConnection: {
    readonly kubeconfig: string
    readonly acceptContentTypes: string
    readonly contentType: string
    readonly qps: number
    readonly burst: number
  }
  readonly logging: Logging
  readonly hostnameOverride: string
  readonly bindAddress: string
  /** '' if the health server is off. */
  readonly healthzBindAddress: string
  readonly metricsBindAddress: string
  readonly bindAddressHardFail: boolean
  readonly enableProfiling: boolean
  readonly showHiddenMetricsForVersion: string
  readonly mode: string
  readonly detectLocalMode: string
  readonly detectLocal: { readonly bridgeInterface: string; readonly interfaceNamePrefix: string }
  readonly nodePortAddresses: readonly string[]
  readonly configSyncPeriod: number
  readonly winkernel: {
    readonly networkName: string
    readonly sourceVip: string
    readonly enableDSR: boolean
    readonly rootHnsEndpointName: string
    readonly forwardHealthCheckVip: boolean
  }
  readonly windowsRunAsService: boolean
}

/** KubeProxyConfiguration v1alpha1 with every default in it. Durations in ms. */
export interface Document extends Shared {
  readonly iptables: Periods & {
    readonly masqueradeBit: number
    readonly masqueradeAll: boolean
    readonly localhostNodePorts: boolean
  }
  readonly ipvs: Periods & IpvsSettings
  readonly nftables: Periods & { readonly masqueradeBit: number; readonly masqueradeAll: boolean }
  readonly clusterCIDR: string
  readonly oomScoreAdj: number
  readonly conntrack: Conntrack
  readonly portRange: string
  readonly udpIdleTimeout: number
  readonly resourceContainer: string
}

/** The internal form before validation: words that must come from a list are any string here. Durations in ms. */
export interface Unchecked extends Shared, Periods {
  readonly masqueradeAll: boolean
  /** The bit of the block that `mode` uses. */
  readonly masqueradeBit: number
  readonly iptables: { readonly localhostNodePorts: boolean; readonly masqueradeBit: number }
  readonly nftables: { readonly masqueradeBit: number }
  readonly ipvs: IpvsSettings
  readonly userspace: { readonly portRange: string; readonly udpTimeout: number }
  readonly clusterCIDRs: readonly string[]
  readonly linux: { readonly oomScoreAdj: number; readonly conntrack: Conntrack }
}

/** The resolved configuration, valid in every field. */
export interface Config extends Unchecked {
  readonly mode: Mode
  readonly detectLocalMode: LocalMode
  readonly logging: Logging & { readonly format: 'text' | 'json' }
}

type Tree = { [key: string]: unknown }

/** Sets a value by dotted path, making the objects on the way. */
export function setPath(tree: object, path: string, value: unknown): void {
  const keys = path.split('.')
  const last = keys.pop() as string
  let at = tree as Tree
  for (const key of keys) {
    at[key] ??= {}
    at = at[key] as Tree
  }
  at[last] = value
}

export const valueAt = (tree: object, path: string): unknown =>
  path.split('.').reduce<unknown>((at, key) => (at as Tree | undefined)?.[key], tree)

/** What a field is when no file gives it. */
export const fileDefault = (row: Setting): Value => row.fileDefault ?? row.default

/** A document from values by path; a field without one has its default. */
export function makeDocument(values: ReadonlyMap<string, Value>): Document {
  const tree: Tree = {}
  for (const row of fieldSettings) {
    if (row.path !== undefined) setPath(tree, row.path, values.get(row.path) ?? fileDefault(row))
  }
  return tree as unknown as Document
}

/** Which block of v1alpha1 holds the sync periods of a mode. */
export const periodBlock = (mode: string): 'ipvs' | 'nftables' | 'iptables' =>
  mode === 'ipvs' || mode === 'nftables' ? mode : 'iptables'

export const masqueradeBlock = (mode: string): 'nftables' | 'iptables' => (mode === 'nftables' ? mode : 'iptables')

export function fromV1alpha1(document: Document): Unchecked {
  const { iptables, ipvs, nftables, clusterCIDR, oomScoreAdj, conntrack, portRange, udpIdleTimeout, ...rest } = document
  const { resourceContainer: _, ...shared } = rest
  const { syncPeriod, minSyncPeriod } = document[periodBlock(document.mode)]
  const { masqueradeAll, masqueradeBit } = document[masqueradeBlock(document.mode)]
  const { syncPeriod: _sync, minSyncPeriod: _min, ...ipvsSettings } = ipvs
  return {
    ...shared,
    syncPeriod,
    minSyncPeriod,
    masqueradeAll,
    masqueradeBit,
    iptables: { localhostNodePorts: iptables.localhostNodePorts, masqueradeBit: iptables.masqueradeBit },
    nftables: { masqueradeBit: nftables.masqueradeBit },
    ipvs: ipvsSettings,
    userspace: { portRange, udpTimeout: udpIdleTimeout },
    clusterCIDRs: clusterCIDR === '' ? [] : clusterCIDR.split(','),
    linux: { oomScoreAdj, conntrack },
  }
}

/** The configuration as v1alpha1 shows it, keys sorted. Periods of modes that are not in use read 0s, as in kube-proxy. */
export function toV1alpha1(config: Unchecked): Record<string, unknown> {
  const { masqueradeAll, iptables, ipvs, nftables, userspace, clusterCIDRs, linux, ...shared } = config
  const none = { syncPeriod: 0, minSyncPeriod: 0, masqueradeAll: false }
  const used = { syncPeriod: config.syncPeriod, minSyncPeriod: config.minSyncPeriod }
  const blocks = { iptables: { ...none }, ipvs: { ...none }, nftables: { ...none } }
  Object.assign(blocks[periodBlock(config.mode)], used)
  blocks[masqueradeBlock(config.mode)].masqueradeAll = masqueradeAll
  const document: Document = {
    ...shared,
    iptables: { ...blocks.iptables, ...iptables },
    ipvs: { ...blocks.ipvs, ...ipvs },
    nftables: { ...blocks.nftables, ...nftables },
    clusterCIDR: clusterCIDRs.join(','),
    oomScoreAdj: linux.oomScoreAdj,
    conntrack: linux.conntrack,
    portRange: userspace.portRange,
    udpIdleTimeout: userspace.udpTimeout,
    resourceContainer: '',
  }
  return writeDocument(document)
}

function writeDocument(document: Document): Record<string, unknown> {
  const written: [string, unknown][] = [
    ['apiVersion', apiVersion],
    ['kind', documentKind],
  ]
  for (const row of fieldSettings) {
    if (row.path === undefined) continue
    const value = valueAt(document, row.path) as Value
    if (row.omitted && (isZero(value) || value === row.default)) continue
    written.push([row.path, writeValue(row, value)])
  }
  const tree: Record<string, unknown> = {}
  for (const [path, value] of written.sort(([a], [b]) => (a < b ? -1 : 1))) setPath(tree, path, value)
  return tree
}
