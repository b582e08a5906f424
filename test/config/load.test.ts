import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { getPath, toV1alpha1 } from '../../src/config/configuration.ts'
import { withPlatformDefaults } from '../../src/config/defaults.ts'
import { loadConfigFile } from '../../src/config/load.ts'
import { writeValue } from '../../src/config/setting.ts'
import { fieldSettings } from '../../src/config/settings-table.ts'
import { validate } from '../../src/config/validate.ts'
import { formatConfig } from '../../src/config/write-config.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { formatDuration, parseDuration } from '../../src/lib/time.ts'

const header = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'
const load = (body: string) => loadConfigFile('f.yaml', header + body)

function failure(text: string): string {
  try {
    loadConfigFile('f.yaml', text)
  } catch (error) {
    if (error instanceof ProxyError && error.code === 'config') return error.message
    throw error
  }
  throw new Error('nothing was thrown')
}

/** The default configuration as kube-proxy writes it, in compact form. */
const defaultDocument = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 10, contentType: application/vnd.kubernetes.protobuf, kubeconfig: "", qps: 5}
clusterCIDR: ""
configSyncPeriod: 15m0s
conntrack: {maxPerCore: 32768, min: 131072, tcpBeLiberal: false, tcpCloseWaitTimeout: 1h0m0s, tcpEstablishedTimeout: 24h0m0s, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ClusterCIDR
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
hostnameOverride: ""
iptables: {localhostNodePorts: true, masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 1s, syncPeriod: 30s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
kind: KubeProxyConfiguration
logging: {flushFrequency: 5s, format: text, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: 127.0.0.1:10249
mode: iptables
nftables: {masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: -999
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`

describe('decoding a configuration file', () => {
  it('A9: warns about unknown fields with their line, also inside a block', () => {
    const { config, warnings } = load('mode: ipvs\nnoSuchField: 1\nipvs:\n  scheduler: lc\n  oops: {a: 1}\nMode: x\n')
    expect(config.mode).toBe('ipvs')
    expect(config.ipvs.scheduler).toBe('lc')
    expect(warnings).toEqual([
      'f.yaml:4: noSuchField: unknown field, ignored',
      'f.yaml:7: ipvs.oops: unknown field, ignored',
      'f.yaml:8: Mode: unknown field, ignored',
    ])
  })

  it('A9: warns about a repeated key; only the last one counts', () => {
    const { config, warnings } = load(
      'iptables:\n  masqueradeBit: 3\nbindAddress: 1.1.1.1\niptables:\n  masqueradeAll: true\n',
    )
    expect(config).toMatchObject({ masqueradeBit: 14, masqueradeAll: true, bindAddress: '1.1.1.1' })
    expect(warnings).toEqual(['f.yaml:6: iptables: given a second time (first on line 3); this one counts'])
  })

  it.each([
    ['a: [', 'f.yaml:1: not valid YAML'],
    [`${header}bindAddress: ::\n`, 'f.yaml:3: not valid YAML'],
    ['', 'f.yaml:1: must be a YAML or JSON object'],
    ['- a\n', 'f.yaml:1: must be a YAML or JSON object'],
    [
      'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration\n',
      'f.yaml:2: kind: given "KubeSchedulerConfiguration", allowed: KubeProxyConfiguration',
    ],
    [
      'apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n',
      'f.yaml:1: apiVersion: given "kubeproxy.config.k8s.io/v1beta1"',
    ],
    ['kind: KubeProxyConfiguration\n', 'f.yaml:1: apiVersion: missing'],
    [`${header}mode: *x\n`, 'f.yaml:3: not valid YAML or JSON: alias *x has no anchor'],
    [
      `${header}nodePortAddresses: &a [*a]\n`,
      'f.yaml:3: not valid YAML or JSON: alias *a stands inside its own anchor',
    ],
    [`${header}iptables: &i\n  <<: *i\n`, 'f.yaml:4: not valid YAML or JSON: alias *i stands inside'],
  ])('A10: refuses %j', (text, message) => {
    expect(failure(text)).toContain(message)
  })

  it.each([
    ['mode: 5', 'f.yaml:3: mode: given 5, allowed: a string'],
    ['hostnameOverride: yes', 'f.yaml:3: hostnameOverride: given true, allowed: a string'],
    ['oomScoreAdj: "1"', 'f.yaml:3: oomScoreAdj: given "1", allowed: a whole number'],
    ['oomScoreAdj: 1.5', 'f.yaml:3: oomScoreAdj: given 1.5'],
    ['oomScoreAdj: 2147483648', 'f.yaml:3: oomScoreAdj: given 2147483648'],
    ['configSyncPeriod: 30', 'f.yaml:3: configSyncPeriod: given 30, allowed: a duration such as'],
    ['conntrack:\n  tcpBeLiberal: 1', 'f.yaml:4: conntrack.tcpBeLiberal: given 1, allowed: true or false'],
    ['iptables: []', 'f.yaml:3: iptables: given [], allowed: an object'],
    ['nodePortAddresses: 10.0.0.0/8', 'f.yaml:3: nodePortAddresses: given "10.0.0.0/8", allowed: a list of strings'],
    ['featureGates: {A: "true"}', 'f.yaml:3: featureGates: given {"A":"true"}, allowed: an object'],
    ['logging: {vmodule: [{filePattern: 1}]}', 'f.yaml:3: logging.vmodule: given'],
    ['logging: {verbosity: -1}', 'f.yaml:3: logging.verbosity: given -1'],
  ])('refuses the wrong type in %j', (body, message) => {
    expect(failure(header + body)).toContain(message)
  })

  it('reports every wrong type at once', () => {
    expect(failure(`${header}mode: 5\nportRange: 6\n`)).toBe(
      'f.yaml:3: mode: given 5, allowed: a string; f.yaml:4: portRange: given 6, allowed: a string',
    )
  })

  it('A11: accepts IPv6 wildcards; a wildcard in brackets loads but is not valid', () => {
    expect(load('bindAddress: "::"\n').config.bindAddress).toBe('::')
    expect(load('bindAddress: ::0\n').config.bindAddress).toBe('::0')
    const { config } = load('bindAddress: "[::]"\n')
    expect(validate(withPlatformDefaults(config)).map((error) => error.field)).toEqual([
      'KubeProxyConfiguration.BindAddress',
    ])
  })

  it('A12: gives an empty document the default values', () => {
    const { config, warnings } = load('')
    expect(warnings).toEqual([])
    expect(toV1alpha1(withPlatformDefaults(config))).toEqual(parse(defaultDocument))
    expect(config).toMatchObject({ mode: '', detectLocalMode: '', syncPeriod: 30_000, minSyncPeriod: 1000 })
    expect(load('mode: nftables\n').config).toMatchObject({ syncPeriod: 30_000, minSyncPeriod: 1000 })
    expect(load('mode: ipvs\n').config).toMatchObject({ syncPeriod: 30_000, minSyncPeriod: 0 })
  })

  it('A13: completes addresses without a port', () => {
    const { config } = load('healthzBindAddress: 127.0.0.1\nmetricsBindAddress: 127.0.0.1\n')
    expect(config).toMatchObject({ healthzBindAddress: '127.0.0.1:10256', metricsBindAddress: '127.0.0.1:10249' })
    expect(load('healthzBindAddress: "fd00::1"\n').config.healthzBindAddress).toBe('[fd00::1]:10256')
    expect(load('healthzBindAddress: "127.0.0.1:x"\n').config.healthzBindAddress).toBe('127.0.0.1:x')
  })

  it('A14: an IPv6 bind address moves the default addresses to IPv6', () => {
    expect(load('bindAddress: fd00::1\n').config).toMatchObject({
      healthzBindAddress: '[::]:10256',
      metricsBindAddress: '[::1]:10249',
    })
  })

  it('keeps an explicit zero where v1alpha1 distinguishes it from a missing value, and only there', () => {
    const { config } = load(
      'conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s}\niptables: {masqueradeBit: 0, localhostNodePorts: false, minSyncPeriod: 0s}\noomScoreAdj: 0\nclientConnection: {qps: 0}\n',
    )
    expect(config).toMatchObject({
      oomScoreAdj: 0,
      conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0 },
    })
    expect(config).toMatchObject({ masqueradeBit: 0, minSyncPeriod: 1000, clientConnection: { qps: 5 } })
    expect(config.iptables.localhostNodePorts).toBe(false)
  })

  it('uses the block of the mode', () => {
    const body =
      'iptables: {syncPeriod: 11s, minSyncPeriod: 2s, masqueradeAll: true, masqueradeBit: 1}\nipvs: {syncPeriod: 12s, minSyncPeriod: 3s}\nnftables: {syncPeriod: 13s, minSyncPeriod: 4s, masqueradeBit: 2}\n'
    const pick = (mode: string) => {
      const { config } = load(`mode: ${mode}\n${body}`)
      return [config.syncPeriod, config.minSyncPeriod, config.masqueradeAll, config.masqueradeBit]
    }
    expect(pick('iptables')).toEqual([11_000, 2000, true, 1])
    expect(pick('""')).toEqual([11_000, 2000, true, 1])
    expect(pick('userspace')).toEqual([11_000, 2000, true, 1])
    expect(pick('ipvs')).toEqual([12_000, 3000, true, 1])
    expect(pick('nftables')).toEqual([13_000, 4000, false, 2])
  })

  it('reads JSON, null, merge keys, booleans of YAML 1.1, and flush frequencies in nanoseconds', () => {
    const json = `{\n\t"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",\n\t"kind": "KubeProxyConfiguration",\n\t"mode": "ipvs",\n\t"nodePortAddresses": null\n}`
    expect(loadConfigFile('f.json', json).config).toMatchObject({ mode: 'ipvs', nodePortAddresses: [] })
    const merged = load(
      'nftables: &n {masqueradeBit: 7, syncPeriod: 9s}\niptables:\n  <<: *n\n  syncPeriod: 8s\nenableProfiling: yes\n',
    )
    expect(merged.warnings).toEqual([])
    expect(merged.config).toMatchObject({ masqueradeBit: 7, syncPeriod: 8000, enableProfiling: true })
    expect(load('logging: {flushFrequency: 1500000000}\n').config.logging.flushFrequency).toBe(1500)
    expect(load('logging: {flushFrequency: 7s}\n').config.logging.flushFrequency).toBe(7000)
  })

  it('reads only the first document, and warns about the others', () => {
    const { config, warnings } = load('mode: ipvs\n---\nmode: nftables\n')
    expect(config.mode).toBe('ipvs')
    expect(warnings).toEqual(['f.yaml:4: only the first document of the file is read'])
  })

  it('either loads a file or explains what is wrong with it', () => {
    const piece = fc.oneof(
      fc.constantFrom(
        'mode',
        'iptables',
        'iptables: {',
        ': ',
        '\n',
        '  ',
        '- ',
        '&a ',
        '*a',
        '&b [x, *a]',
        '*b',
        '<<: ',
        '{',
        '}',
        '[',
        ']',
        ',',
      ),
      fc.constantFrom(
        '!!int x',
        '"',
        "'",
        '|',
        '? ',
        '---',
        '%YAML 1.2',
        '#',
        '\t',
        'masqueradeBit: 3',
        'null',
        '1e400',
      ),
      fc.string({ maxLength: 3 }),
    )
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 12 }), (pieces) => {
        try {
          load(pieces.join(''))
        } catch (error) {
          expect(error).toBeInstanceOf(ProxyError)
          expect((error as ProxyError).message).toMatch(/^f\.yaml:\d+: /)
        }
      }),
      { numRuns: 500 },
    )
  })

  it('reads fields of old releases: fields of userspace mode apply, the others only cause a warning', () => {
    const { config, warnings } = load(
      'mode: userspace\nportRange: 3000-4000\nudpIdleTimeout: 1s\nresourceContainer: /kube-proxy\n',
    )
    expect(config).toMatchObject({ portRange: '3000-4000', udpIdleTimeout: 1000 })
    expect(warnings).toEqual([expect.stringMatching(/^f\.yaml:6: resourceContainer: it has no effect/)])
    expect(load('resourceContainer: ""\nudpIdleTimeout: 0s\n')).toMatchObject({
      warnings: [],
      config: { udpIdleTimeout: 250 },
    })
  })
})

describe('writing a configuration', () => {
  it('writes block style with sorted keys', () => {
    const text = formatConfig(
      withPlatformDefaults(load('mode: nftables\nfeatureGates: {ComponentStatusz: false, AllBeta: true}\n').config),
    )
    const keys = [...text.matchAll(/^([a-zA-Z]+):/gm)].map((match) => match[1])
    expect(keys).toEqual([...keys].sort())
    expect(text).toContain('\nnodePortAddresses:\n- primary\noomScoreAdj: -999\nportRange: ""\n')
    expect(text).toContain('\nfeatureGates:\n  AllBeta: true\n  ComponentStatusz: false\n')
    expect(text).toContain('\n    text:\n      infoBufferSize: "0"\n')
    expect(text).toContain(
      '\nnftables:\n  masqueradeAll: false\n  masqueradeBit: 14\n  minSyncPeriod: 1s\n  syncPeriod: 30s\n',
    )
    expect(text).toContain('  excludeCIDRs: null\n')
    expect(text).not.toMatch(/udpIdleTimeout|resourceContainer|windowsRunAsService/)
  })

  it('quotes words that YAML 1.1 would not read as strings', () => {
    const { config } = load(
      'hostnameOverride: "on"\nipvs: {scheduler: "010"}\ndetectLocal: {bridgeInterface: "1:30"}\n',
    )
    const again = loadConfigFile('again', formatConfig(config)).config
    expect([again.hostnameOverride, again.ipvs.scheduler, again.detectLocal.bridgeInterface]).toEqual([
      'on',
      '010',
      '1:30',
    ])
  })

  it('loads a written configuration as the same configuration, whatever the values', () => {
    const periods = fc.record({
      syncPeriod: fc.integer({ min: 1, max: 1e8 }),
      minSyncPeriod: fc.integer({ min: 1, max: 1e8 }),
    })
    const changes = fc.record({
      mode: fc.constantFrom('iptables', 'ipvs', 'nftables', 'userspace'),
      hostnameOverride: fc.string({ unit: 'grapheme' }),
      masqueradeAll: fc.boolean(),
      featureGates: fc.dictionary(fc.stringMatching(/^[A-Za-z]{1,8}$/), fc.boolean(), { noNullPrototype: true }),
      nodePortAddresses: fc.array(fc.string(), { maxLength: 3 }),
      clusterCIDRs: fc.array(fc.stringMatching(/^[a-f0-9:./]{1,9}$/), { maxLength: 2 }),
      portRange: fc.string(),
      udpIdleTimeout: fc.integer({ min: 1, max: 1e6 }),
    })
    fc.assert(
      fc.property(changes, periods, (change, period) => {
        const config = { ...withPlatformDefaults(load('').config), ...change, ...period }
        expect(loadConfigFile('again', formatConfig(config)).config).toEqual(config)
      }),
      { numRuns: 60 },
    )
  })

  it('has every field of the table in the default document, with its default', () => {
    const document = toV1alpha1(load('').config)
    for (const row of fieldSettings.filter((each) => each.omitted === undefined)) {
      const { path } = row
      if (/^(ipvs|nftables)\.(min)?[sS]yncPeriod$/.test(path)) continue
      expect(getPath(document, path), path).toEqual(writeValue(row, row.fileDefault ?? row.default))
    }
  })
})

describe('durations', () => {
  it('reads back every duration it writes', () => {
    fc.assert(
      fc.property(fc.integer({ min: -1e12, max: 1e12 }), (us) => {
        expect(parseDuration(formatDuration(us / 1e3))).toBeCloseTo(us / 1e3, 6)
      }),
    )
  })
})
