// From flags, or from a file with the flags that beat it, to the configuration that is validated.

import { ProxyError } from '../lib/errors.ts'
import { type Document, fromV1alpha1, makeDocument, setPath, type Unchecked } from './configuration.ts'
import { appendPort } from './load.ts'
import type { Setting } from './setting.ts'
import { fieldSettings } from './settings-table.ts'
import type { VerbosityRule } from './text.ts'
import type { Value } from './values.ts'

/** Values of the flags that were given, by flag name. */
export type Given = ReadonlyMap<string, Value>

export interface DeprecatedPorts {
  readonly healthz: number
  readonly metrics: number
}

/** The configuration when no file is given. Defaults are made first, so an explicit zero stays a zero. */
export function fromFlags(given: Given): Unchecked {
  const document = makeDocument(new Map()) as Document
  for (const row of withFields(given)) setPath(document, row.path as string, given.get(row.flag as string))
  const config = fromV1alpha1(document)
  const ipvs = config.mode === 'ipvs'
  return {
    ...config,
    hostnameOverride: '',
    // One switch for all modes; the nftables block has no flags of its own.
    masqueradeAll: document.iptables.masqueradeAll,
    syncPeriod: ipvs ? document.ipvs.syncPeriod : document.iptables.syncPeriod,
    // ipvs without the flag has 1 s here and 0 s with a file, as in kube-proxy.
    minSyncPeriod: ipvs
      ? ((given.get('ipvs-min-sync-period') as number | undefined) ?? 1000)
      : document.iptables.minSyncPeriod,
    clusterCIDRs: given.has('cluster-cidr') ? document.clusterCIDR.split(',') : [],
  }
}

/** The two flags that gave servers their port before the address flags did: 0 turns a server off. */
export function withDeprecatedPorts(config: Unchecked, ports: DeprecatedPorts): Unchecked {
  const address = (text: string, port: number) => (port === 0 ? '' : appendPort(text, port))
  return {
    ...config,
    healthzBindAddress: address(config.healthzBindAddress, ports.healthz),
    metricsBindAddress: address(config.metricsBindAddress, ports.metrics),
  }
}

/** Logging flags beat a file's logging block, but only those that were given. */
export function withLoggingFlags(config: Unchecked, given: Given): Unchecked {
  const logging = structuredClone(config.logging)
  for (const row of withFields(given)) {
    const path = row.path as string
    if (path.startsWith('logging.')) setPath({ logging }, path, given.get(row.flag as string))
  }
  const first = (given.get('vmodule') ?? []) as readonly VerbosityRule[]
  return { ...config, logging: { ...logging, vmodule: [...first, ...config.logging.vmodule] } }
}

export function withPlatformDefaults(config: Unchecked): Unchecked {
  const mode = config.mode === '' ? 'iptables' : config.mode
  const primary = mode === 'nftables' && config.nodePortAddresses.length === 0
  return {
    ...config,
    mode,
    nodePortAddresses: primary ? ['primary'] : config.nodePortAddresses,
    detectLocalMode: config.detectLocalMode === '' ? 'ClusterCIDR' : config.detectLocalMode,
  }
}

/** The flag beats the file; an empty flag is one that was not given. */
export function withHostname(config: Unchecked, given: Given): Unchecked {
  const flag = (given.get('hostname-override') ?? '') as string
  if (flag === '') return config
  const hostnameOverride = flag.trim().toLowerCase()
  if (hostnameOverride === '') {
    throw new ProxyError('config', `--hostname-override: given ${JSON.stringify(flag)}, allowed: the name of a Node`)
  }
  return { ...config, hostnameOverride }
}

const withFields = (given: Given): Setting[] =>
  fieldSettings.filter((row) => row.path !== undefined && row.flag !== undefined && given.has(row.flag))
