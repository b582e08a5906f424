// Validates a resolved configuration. Every rule is checked, so that one start shows every problem. Pure.

import { type Family, parseCidr, parseIp } from '../lib/ip.ts'
import { formatDuration } from '../lib/time.ts'
import { type Config, findPeriodBlock, type Unchecked } from './configuration.ts'
import { findGateProblem, isFeatureEnabled } from './gates.ts'
import { kubernetesVersion } from './kubernetes-version.ts'
import { logFormats } from './logging-table.ts'
import { localModes, proxyModes } from './settings-table.ts'
import { parsePortRange, parseQuantityBytes, splitAddress } from './value-syntax.ts'

export interface FieldError {
  /** Name in kube-proxy's validation, such as `KubeProxyConfiguration.SyncPeriod`. */
  readonly field: string
  readonly value: unknown
  /** Says what is allowed. */
  readonly message: string
  /** Path in v1alpha1, from which the flag or the line of the file is found. */
  readonly path: string
}

type Check = (config: Unchecked) => readonly Finding[]
/** The members of a FieldError; `field` is without the common prefix. */
type Finding = readonly [field: string, path: string, value: unknown, message: string]

/** `primary` must be the only entry in 1.36. The other two come with 1.37, where keywords and CIDRs may be mixed. */
const addressKeywords: readonly string[] = ['localhost', 'all']
const maxLevel = 2 ** 31 - 1

export function validate(config: Unchecked): FieldError[] {
  return checks.flatMap((check) =>
    check(config).map(([field, path, value, message]) => ({
      field: `KubeProxyConfiguration.${field}`,
      path,
      value,
      message,
    })),
  )
}

/** Narrows a configuration in which `validate` finds no error. The platform defaults have filled an empty mode by then. */
export const isValid = (config: Unchecked): config is Config => validate(config).length === 0

const checkMinimum = (low: number, value: number, field: string, path: string): Finding[] =>
  value < low ? [[field, path, value, `must be greater than or equal to ${low}`]] : []

const checkPeriod = (value: number, field: string, path: string): Finding[] =>
  value < 0 ? [[field, path, formatDuration(value), 'must be greater than or equal to 0']] : []

type Range = readonly [low: number, high: number]

const checkRange = ([low, high]: Range, value: number, field: string, path: string): Finding[] =>
  value < low || value > high ? [[field, path, value, `must be within the range [${low}, ${high}]`]] : []

const isOneOf = (words: readonly string[], text: string): boolean => words.includes(text)

const checkCidrs = (list: readonly string[], field: string, path: string): Finding[] =>
  list.flatMap((text, i) =>
    parseCidr(text) === undefined ? [[`${field}[${i}]`, `${path}[${i}]`, text, 'must be a valid CIDR']] : [],
  )

function checkGates({ featureGates }: Unchecked): Finding[] {
  const problem = findGateProblem(featureGates)
  return problem === undefined ? [] : [['featureGates', 'featureGates', featureGates, problem]]
}

function checkIpvs({ mode, ipvs }: Unchecked): Finding[] {
  if (mode !== 'ipvs') return []
  const block = 'KubeProxyIPVSConfiguration'
  return [
    ...checkPeriod(ipvs.tcpTimeout, `${block}.TCPTimeout`, 'ipvs.tcpTimeout'),
    ...checkPeriod(ipvs.tcpFinTimeout, `${block}.TCPFinTimeout`, 'ipvs.tcpFinTimeout'),
    ...checkPeriod(ipvs.udpTimeout, `${block}.UDPTimeout`, 'ipvs.udpTimeout'),
    ...checkCidrs(ipvs.excludeCIDRs, `${block}.ExcludeCidrs`, 'ipvs.excludeCIDRs'),
  ]
}

function checkMasqueradeBits({ mode, iptables, nftables }: Unchecked): Finding[] {
  const field = (block: string) => `KubeProxy${block}Configuration.MasqueradeBit`
  return [
    ...checkRange([0, 31], iptables.masqueradeBit, field('IPTables'), 'iptables.masqueradeBit'),
    ...(mode === 'nftables'
      ? checkRange([0, 31], nftables.masqueradeBit, field('NFTables'), 'nftables.masqueradeBit')
      : []),
  ]
}

function checkUserspace({ mode, portRange, udpIdleTimeout }: Unchecked): Finding[] {
  if (mode !== 'userspace') return []
  const findings: Finding[] = []
  if (parsePortRange(portRange) === undefined) {
    findings.push(['PortRange', 'portRange', portRange, 'must be a valid port range (e.g. 300-2000)'])
  }
  if (udpIdleTimeout <= 0) {
    findings.push(['UDPIdleTimeout', 'udpIdleTimeout', formatDuration(udpIdleTimeout), 'must be greater than 0'])
  }
  return findings
}

function checkLinux({ conntrack, oomScoreAdj }: Unchecked): Finding[] {
  const linux = 'KubeProxyLinuxConfiguration'
  const block = `${linux}.KubeProxyConntrackConfiguration`
  return [
    ...checkMinimum(0, conntrack.maxPerCore, `${block}.MaxPerCore`, 'conntrack.maxPerCore'),
    ...checkMinimum(0, conntrack.min, `${block}.Min`, 'conntrack.min'),
    ...checkPeriod(
      conntrack.tcpEstablishedTimeout,
      `${block}.TCPEstablishedTimeout`,
      'conntrack.tcpEstablishedTimeout',
    ),
    ...checkPeriod(conntrack.tcpCloseWaitTimeout, `${block}.TCPCloseWaitTimeout`, 'conntrack.tcpCloseWaitTimeout'),
    ...checkPeriod(conntrack.udpTimeout, `${block}.UDPTimeout`, 'conntrack.udpTimeout'),
    ...checkPeriod(conntrack.udpStreamTimeout, `${block}.UDPStreamTimeout`, 'conntrack.udpStreamTimeout'),
    ...checkRange([-1000, 1000], oomScoreAdj, `${linux}.OOMScoreAdj`, 'oomScoreAdj'),
  ]
}

function checkMode(config: Unchecked): Finding[] {
  const { mode } = config
  if (mode !== '' && !isOneOf(proxyModes, mode)) {
    return [['Mode.ProxyMode', 'mode', mode, `must be one of ${proxyModes.join(', ')}, or empty for iptables`]]
  }
  if (mode === 'ipvs' && !isFeatureEnabled(config, 'KubeProxyIPVS')) {
    return [['Mode.ProxyMode', 'mode', mode, 'needs the feature gate KubeProxyIPVS, which is off']]
  }
  return []
}

function checkPeriods(config: Unchecked): Finding[] {
  const { configSyncPeriod, syncPeriod, minSyncPeriod } = config
  const block = findPeriodBlock(config.mode)
  const findings: Finding[] = []
  if (configSyncPeriod <= 0) {
    findings.push(['ConfigSyncPeriod', 'configSyncPeriod', formatDuration(configSyncPeriod), 'must be greater than 0'])
  }
  if (syncPeriod <= 0) {
    findings.push(['SyncPeriod', `${block}.syncPeriod`, formatDuration(syncPeriod), 'must be greater than 0'])
  }
  findings.push(...checkPeriod(minSyncPeriod, 'MinSyncPeriod', `${block}.minSyncPeriod`))
  if (minSyncPeriod > syncPeriod) {
    const message = `minSyncPeriod must not be greater than syncPeriod, which is ${formatDuration(syncPeriod)}`
    findings.push(['SyncPeriod', `${block}.minSyncPeriod`, formatDuration(minSyncPeriod), message])
  }
  return findings
}

function checkAddress(text: string, field: string, path: string): Finding[] {
  const parts = splitAddress(text)
  if (parts === undefined) return [[field, path, text, 'must be IP:port']]
  const findings: Finding[] = []
  if (parseIp(parts.host) === undefined) findings.push([field, path, parts.host, 'must be a valid IP'])
  const port = /^[+-]?\d+$/.test(parts.port) ? Number(parts.port) : 0
  if (port < 1 || port > 65535) findings.push([field, path, parts.port, 'must be a valid port, 1 to 65535'])
  return findings
}

function checkAddresses(config: Unchecked): Finding[] {
  const { bindAddress, healthzBindAddress, metricsBindAddress } = config
  return [
    ...(parseIp(bindAddress) === undefined
      ? ([['BindAddress', 'bindAddress', bindAddress, 'must be a valid IP address']] as const)
      : []),
    ...(healthzBindAddress === '' ? [] : checkAddress(healthzBindAddress, 'HealthzBindAddress', 'healthzBindAddress')),
    ...checkAddress(metricsBindAddress, 'MetricsBindAddress', 'metricsBindAddress'),
  ]
}

function checkNodePortAddresses({ nodePortAddresses: list }: Unchecked): Finding[] {
  const findings: Finding[] = []
  const at = (i: number, message: string): Finding => [
    `NodePortAddresses[${i}]`,
    `nodePortAddresses[${i}]`,
    list[i],
    message,
  ]
  for (const [i, text] of list.entries()) {
    if (text === 'primary') {
      if (list.length > 1) findings.push(at(i, "'primary' must be the only entry"))
      break
    }
    if (addressKeywords.includes(text)) {
      if (list.indexOf(text) !== i) findings.push(at(i, 'must not be given twice'))
    } else if (parseCidr(text) === undefined) {
      findings.push(at(i, 'must be a valid CIDR, localhost, all, or primary on its own'))
    }
  }
  return findings
}

function checkLocal(config: Unchecked): Finding[] {
  const { detectLocalMode: mode, detectLocal, clusterCIDRs } = config
  const block = 'DetectLocalConfiguration'
  if (mode === '') return []
  if (!isOneOf(localModes, mode)) {
    return [['DetectLocalMode', 'detectLocalMode', mode, `must be one of ${localModes.join(', ')}, or empty`]]
  }
  if (mode === 'BridgeInterface' && detectLocal.bridgeInterface === '') {
    return [[`${block}.InterfaceName`, 'detectLocal.bridgeInterface', '', 'must not be empty in mode BridgeInterface']]
  }
  if (mode === 'InterfaceNamePrefix' && detectLocal.interfaceNamePrefix === '') {
    const message = 'must not be empty in mode InterfaceNamePrefix'
    return [[`${block}.InterfacePrefix`, 'detectLocal.interfaceNamePrefix', '', message]]
  }
  return mode === 'ClusterCIDR' && clusterCIDRs.length > 0 ? checkClusterCidrs(clusterCIDRs) : []
}

function checkClusterCidrs(list: readonly string[]): Finding[] {
  const field = 'DetectLocalConfiguration.ClusterCIDRs'
  const pair = 'must be one CIDR or one of each IP family (e.g. 10.100.0.0/16,fde4:8dba:82e1::/48)'
  if (list.length > 2) return [[field, 'clusterCIDR', list, pair]]
  const families = list.map((text): Family | undefined => parseCidr(text)?.family)
  const bad = list.flatMap((text, i): Finding[] =>
    families[i] === undefined ? [[`${field}[${i}]`, 'clusterCIDR', text, 'must be a valid CIDR']] : [],
  )
  return bad.length === 0 && list.length === 2 && families[0] === families[1]
    ? [[field, 'clusterCIDR', list, pair]]
    : bad
}

function checkHiddenMetrics({ showHiddenMetricsForVersion: version }: Unchecked): Finding[] {
  const allowed = `${kubernetesVersion.major}.${kubernetesVersion.minor - 1}`
  if (version === '' || version === allowed) return []
  const message = `must be empty or '${allowed}', the previous minor version`
  return [['ShowHiddenMetricsForVersion', 'showHiddenMetricsForVersion', version, message]]
}

function checkLogging(config: Unchecked): Finding[] {
  const { format, flushFrequency, verbosity, vmodule } = config.logging
  const findings: Finding[] = []
  const add = (path: string, value: unknown, message: string) => findings.push([path, path, value, message])
  if (flushFrequency <= 0) add('logging.flushFrequency', formatDuration(flushFrequency), 'must be greater than 0')
  if (!isOneOf(logFormats, format)) add('logging.format', format, `must be ${logFormats.join(' or ')}`)
  if (verbosity > maxLevel) add('logging.verbosity', verbosity, `must be at most ${maxLevel}`)
  if (vmodule.length > 0 && format !== 'text') add('logging.vmodule', format, 'is only supported with log format text')
  for (const [i, rule] of vmodule.entries()) {
    const path = `logging.vmodule[${i}]`
    if (rule.filePattern === '') add(path, '', 'the file pattern must not be empty')
    if (/[=,]/.test(rule.filePattern)) add(path, rule.filePattern, "the file pattern must not contain '=' or ','")
    if (rule.verbosity > maxLevel) add(path, rule.verbosity, `must be at most ${maxLevel}`)
  }
  if (isFeatureEnabled(config, 'LoggingAlphaOptions')) return findings
  for (const stream of logFormats) {
    const options = config.logging.options[stream]
    const needsGate = 'needs the feature gate LoggingAlphaOptions'
    if (options.splitStream) add(`logging.options.${stream}.splitStream`, true, needsGate)
    if (parseQuantityBytes(options.infoBufferSize) !== 0) {
      add(`logging.options.${stream}.infoBufferSize`, options.infoBufferSize, needsGate)
    }
  }
  return findings
}

const checks: readonly Check[] = [
  checkGates,
  checkMasqueradeBits,
  checkIpvs,
  checkUserspace,
  checkLinux,
  checkMode,
  ({ clientConnection: { burst } }) => checkMinimum(0, burst, 'ClientConnection.Burst', 'clientConnection.burst'),
  checkPeriods,
  checkAddresses,
  checkNodePortAddresses,
  checkHiddenMetrics,
  checkLocal,
  checkLogging,
]
