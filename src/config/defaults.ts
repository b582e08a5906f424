// Builds the configuration to validate from flags alone, or from a file and the flags that beat it. Pure.

import { ProxyError } from '../lib/errors.ts'
import type { Value } from './codecs.ts'
import { fromV1alpha1, makeDocument, setPath, type Unchecked } from './configuration.ts'
import { appendPort } from './load.ts'
import type { CommandLine } from './setting.ts'
import { type FieldRow, fieldSettings, proxyModes } from './settings-table.ts'

/** The flags that have a field in the file. */
export type FieldFlags = CommandLine<FieldRow>

export interface DeprecatedPorts {
  readonly healthz: number
  readonly metrics: number
}

/** Builds the configuration when no file is given. An explicit zero stays a zero. */
export function fromFlags(flags: FieldFlags): Unchecked {
  const document = makeDocument(new Map(listFlagFields(flags).map(({ path, value }) => [path, value])))
  const { syncPeriod, minSyncPeriod } = document[document.mode === 'ipvs' ? 'ipvs' : 'iptables']
  return {
    ...fromV1alpha1(document),
    hostnameOverride: '',
    // These flags apply to every mode but ipvs; the nftables block has no flags of its own.
    syncPeriod,
    minSyncPeriod,
    masqueradeAll: document.iptables.masqueradeAll,
    clusterCIDRs: flags.given.has('cluster-cidr') ? document.clusterCIDR.split(',') : [],
  }
}

/** Applies the two flags that gave the servers their ports before the address flags existed: 0 turns a server off. */
export function withDeprecatedPorts(config: Unchecked, ports: DeprecatedPorts): Unchecked {
  const address = (text: string, port: number) => (port === 0 ? '' : appendPort(text, port))
  return {
    ...config,
    healthzBindAddress: address(config.healthzBindAddress, ports.healthz),
    metricsBindAddress: address(config.metricsBindAddress, ports.metrics),
  }
}

/** Applies the given logging flags, which beat the logging block of a file. */
export function withLoggingFlags(config: Unchecked, flags: FieldFlags): Unchecked {
  const logging = structuredClone(config.logging)
  for (const { path, value, flag } of listFlagFields(flags)) {
    if (path.startsWith('logging.') && flags.given.has(flag)) setPath({ logging }, path, value)
  }
  return { ...config, logging: { ...logging, vmodule: [...flags.values.vmodule, ...config.logging.vmodule] } }
}

/** What differs between operating systems. */
export interface PlatformDefaults {
  /** The name of the system, for messages. */
  readonly name: string
  /** The modes that the system can do. */
  readonly modes: readonly string[]
  /** The mode if none is given. */
  readonly mode: string
}

export const linuxDefaults: PlatformDefaults = { name: 'Linux', modes: proxyModes, mode: 'iptables' }

export function withPlatformDefaults(config: Unchecked, platform = linuxDefaults): Unchecked {
  const mode = config.mode === '' ? platform.mode : config.mode
  const isPrimaryOnly = mode === 'nftables' && config.nodePortAddresses.length === 0
  return {
    ...config,
    mode,
    nodePortAddresses: isPrimaryOnly ? ['primary'] : config.nodePortAddresses,
    detectLocalMode: config.detectLocalMode === '' ? 'ClusterCIDR' : config.detectLocalMode,
  }
}

/** Applies the host name flag, which beats the file. An empty flag counts as not given. */
export function withHostname(config: Unchecked, { values }: FieldFlags): Unchecked {
  const flag = values['hostname-override']
  if (flag === '') return config
  const hostnameOverride = flag.trim().toLowerCase()
  if (hostnameOverride === '') {
    throw new ProxyError('config', `--hostname-override: given ${JSON.stringify(flag)}, allowed: the name of a Node`)
  }
  return { ...config, hostnameOverride }
}

/** Every flag that has a field, with the value of the flag. */
function listFlagFields({ values }: FieldFlags): readonly { path: string; flag: string; value: Value }[] {
  const byName = new Map<string, Value>(Object.entries(values))
  return fieldSettings.flatMap(({ path, flag = '' }) => {
    const value = byName.get(flag)
    return value === undefined ? [] : [{ path, flag, value }]
  })
}
