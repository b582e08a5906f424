import { describe, expect, it } from 'vitest'
import type { Unchecked } from '../../src/config/configuration.ts'
import { withPlatformDefaults } from '../../src/config/defaults.ts'
import { gateGroups } from '../../src/config/gate-names.ts'
import { findGateProblem, findGateWarnings, isFeatureEnabled, listFeatures } from '../../src/config/gates.ts'
import { loadConfigFile } from '../../src/config/load.ts'
import { validate } from '../../src/config/validate.ts'

const header = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'
const load = (body = ''): Unchecked => withPlatformDefaults(loadConfigFile('f.yaml', header + body).config)

/** Fields with an error, without the common prefix. */
const wrong = (body: string, change: Partial<Unchecked> = {}): string[] =>
  validate({ ...load(body), ...change }).map((error) => error.field.replace('KubeProxyConfiguration.', ''))

describe('validation', () => {
  it('accepts the defaults in every mode', () => {
    for (const mode of ['', 'iptables', 'ipvs', 'nftables', 'userspace']) expect(wrong(`mode: "${mode}"\n`)).toEqual([])
  })

  it('A17: accepts an empty health address, but not an empty metrics address', () => {
    expect(wrong('', { healthzBindAddress: '' })).toEqual([])
    expect(wrong('', { metricsBindAddress: '' })).toEqual(['MetricsBindAddress'])
  })

  it.each(['127.0.0.1', '127.0.0.1:0', '127.0.0.1:65536', '127.0.0.1:foo', 'host:80', '[::1]', '::1:80x'])(
    'A17: refuses the address %s',
    (address) => {
      expect(wrong('', { metricsBindAddress: address })).toEqual(['MetricsBindAddress'])
      expect(wrong('', { healthzBindAddress: address })).toEqual(['HealthzBindAddress'])
    },
  )

  it('A17: accepts IPv4 and IPv6 addresses with a port', () => {
    for (const address of ['0.0.0.0:1', '[::]:65535']) expect(wrong('', { metricsBindAddress: address })).toEqual([])
  })

  it('A18: refuses unknown modes', () => {
    for (const mode of ['kernelspace', 'non-existing', 'IPVS']) expect(wrong('', { mode })).toEqual(['Mode.ProxyMode'])
    expect(wrong('', { mode: '' })).toEqual([])
  })

  it.each([
    [['primary'], []],
    [['primary', '10.0.0.0/8'], ['NodePortAddresses[0]']],
    [['10.0.0.0/8', 'primary'], ['NodePortAddresses[1]']],
    [['10.20.30.40'], ['NodePortAddresses[0]']],
    [
      ['bad', 'primary', 'worse'],
      ['NodePortAddresses[0]', 'NodePortAddresses[1]'],
    ],
    [['10.0.0.0/8', 'fd00::/8'], []],
    [['localhost'], []],
    [['localhost', 'all', '10.0.0.0/8'], []],
    [['localhost', 'localhost'], ['NodePortAddresses[1]']],
  ])('A19: node port addresses %j', (nodePortAddresses, fields) => {
    expect(wrong('', { nodePortAddresses })).toEqual(fields)
  })

  it('A20: checks numbers and timeouts', () => {
    expect(wrong('mode: nftables\niptables: {masqueradeBit: -10}\n')).toEqual([
      'KubeProxyIPTablesConfiguration.MasqueradeBit',
    ])
    expect(wrong('mode: nftables\nnftables: {masqueradeBit: 32}\n')).toEqual([
      'KubeProxyNFTablesConfiguration.MasqueradeBit',
    ])
    expect(wrong('mode: iptables\nnftables: {masqueradeBit: 32}\n')).toEqual([])
    expect(wrong('oomScoreAdj: -1001\n')).toEqual(['KubeProxyLinuxConfiguration.OOMScoreAdj'])
    expect(wrong('oomScoreAdj: 1001\n')).toEqual(['KubeProxyLinuxConfiguration.OOMScoreAdj'])
    const all =
      'maxPerCore: -1, min: -1, tcpEstablishedTimeout: -1s, tcpCloseWaitTimeout: -1s, udpTimeout: -1s, udpStreamTimeout: -1s'
    expect(wrong(`conntrack: {${all}}\n`).map((field) => field.split('.').at(-1))).toEqual([
      'MaxPerCore',
      'Min',
      'TCPEstablishedTimeout',
      'TCPCloseWaitTimeout',
      'UDPTimeout',
      'UDPStreamTimeout',
    ])
    expect(wrong('clientConnection: {burst: -1}\n')).toEqual(['ClientConnection.Burst'])
  })

  it('checks ipvs settings in ipvs mode only', () => {
    const body = 'ipvs: {tcpTimeout: -1s, tcpFinTimeout: -1s, udpTimeout: -1s, excludeCIDRs: [10.0.0.0/8, x]}\n'
    expect(wrong(`mode: iptables\n${body}`)).toEqual([])
    expect(wrong(`mode: ipvs\n${body}`).map((field) => field.split('.').at(-1))).toEqual([
      'TCPTimeout',
      'TCPFinTimeout',
      'UDPTimeout',
      'ExcludeCidrs[1]',
    ])
    expect(wrong('mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}\n')).toEqual(['Mode.ProxyMode'])
  })

  it('A21: refuses a minimum above the sync period', () => {
    const errors = validate(load('iptables: {syncPeriod: 1s, minSyncPeriod: 5s}\n'))
    expect(errors).toEqual([
      {
        field: 'KubeProxyConfiguration.SyncPeriod',
        path: 'iptables.minSyncPeriod',
        value: '5s',
        message: 'minSyncPeriod must not be greater than syncPeriod, which is 1s',
      },
    ])
    expect(wrong('', { syncPeriod: 0, minSyncPeriod: 0 })).toEqual(['SyncPeriod'])
    expect(wrong('', { minSyncPeriod: -1 })).toEqual(['MinSyncPeriod'])
    expect(wrong('configSyncPeriod: -1s\n')).toEqual(['ConfigSyncPeriod'])
  })

  it('A22: checks the detection of local traffic', () => {
    expect(wrong('detectLocalMode: Guess\n')).toEqual(['DetectLocalMode'])
    expect(wrong('detectLocalMode: BridgeInterface\n')).toEqual(['DetectLocalConfiguration.InterfaceName'])
    expect(wrong('detectLocalMode: InterfaceNamePrefix\n')).toEqual(['DetectLocalConfiguration.InterfacePrefix'])
    const list = 'DetectLocalConfiguration.ClusterCIDRs'
    expect(wrong('clusterCIDR: "10.0.0.0/8,fd00::/8,11.0.0.0/8"\n')).toEqual([list])
    expect(wrong('clusterCIDR: "10.0.0.0/8,11.0.0.0/8"\n')).toEqual([list])
    expect(wrong('clusterCIDR: "10.0.0.0/8,garbage"\n')).toEqual([`${list}[1]`])
    expect(wrong('clusterCIDR: "10.0.0.0/8,fd00::/8"\n')).toEqual([])
    expect(wrong('clusterCIDR: ""\n')).toEqual([])
    expect(wrong('detectLocalMode: NodeCIDR\nclusterCIDR: garbage\n')).toEqual([])
  })

  it('allows hidden metrics of the previous minor version only', () => {
    expect(wrong('showHiddenMetricsForVersion: "1.35"\n')).toEqual([])
    for (const version of ['1.36', '1.34', '1.35.0']) {
      expect(wrong('', { showHiddenMetricsForVersion: version })).toEqual(['ShowHiddenMetricsForVersion'])
    }
  })

  it('checks logging', () => {
    expect(wrong('logging: {format: xml}\n')).toEqual(['logging.format'])
    expect(wrong('logging: {flushFrequency: -1s}\n')).toEqual(['logging.flushFrequency'])
    expect(wrong('logging: {verbosity: 4294967295}\n')).toEqual(['logging.verbosity'])
    expect(wrong('logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}\n')).toEqual(['logging.vmodule'])
    expect(wrong('logging: {vmodule: [{verbosity: 1}, {filePattern: "a=b", verbosity: 1}]}\n')).toEqual([
      'logging.vmodule[0]',
      'logging.vmodule[1]',
    ])
    const alpha = 'logging: {options: {text: {splitStream: true, infoBufferSize: 1Ki}}}\n'
    expect(wrong(alpha)).toEqual(['logging.options.text.splitStream', 'logging.options.text.infoBufferSize'])
    expect(wrong(`${alpha}featureGates: {LoggingAlphaOptions: true}\n`)).toEqual([])
  })
})

describe('feature gates', () => {
  it('A25: accepts the gates of kube-proxy and of other components, and refuses unknown gates', () => {
    for (const name of [
      'AllowServiceExternalIPs',
      'WatchListClient',
      'ComponentFlagz',
      'NativeHistograms',
      'PodLevelResources',
    ]) {
      expect(findGateProblem({ [name]: true }) ?? '').not.toContain('no feature gate')
    }
    const names = gateGroups.flatMap((group) => group.names.trim().split(/\s+/))
    expect(new Set(names).size).toBe(names.length)
    expect(findGateProblem({ Nonsense: true })).toContain('"Nonsense"')
    expect(findGateProblem({ constructor: true } as unknown as Record<string, boolean>)).toContain('"constructor"')
    expect(findGateProblem({ NFTablesProxyMode: true })).toBeUndefined()
    expect(findGateProblem({ NFTablesProxyMode: false })).toBe('NFTablesProxyMode is locked to true in Kubernetes 1.36')
    expect(wrong('featureGates: {PreferSameTrafficDistribution: false}\n')).toEqual(['featureGates'])
  })

  it('uses the value of a gate, else the switch of its stage, else its default', () => {
    const enabled = (gates: Record<string, boolean>, name: string) => isFeatureEnabled({ featureGates: gates }, name)
    expect(enabled({}, 'WatchListClient')).toBe(true)
    expect(enabled({}, 'NativeHistograms')).toBe(false)
    expect(enabled({ AllAlpha: true }, 'NativeHistograms')).toBe(true)
    expect(enabled({ AllAlpha: true, NativeHistograms: false }, 'NativeHistograms')).toBe(false)
    expect(enabled({ AllBeta: false }, 'WatchListClient')).toBe(false)
    expect(enabled({ AllBeta: false }, 'PreferSameTrafficDistribution')).toBe(true)
    expect(enabled({}, 'Nonsense')).toBe(false)
    expect(listFeatures({ featureGates: { AllBeta: false } })).toContainEqual({
      name: 'WatchListClient',
      stage: 'BETA',
      enabled: false,
    })
  })

  it('warns about gates that a future release will remove', () => {
    expect(findGateWarnings({ WatchListClient: true, AllAlpha: true })).toEqual([])
    expect(findGateWarnings({ NFTablesProxyMode: true })).toHaveLength(1)
  })
})
