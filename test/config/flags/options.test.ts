import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { formatFlagDocs, formatUsage } from '../../../src/config/flags/flag-help.ts'
import { flagSettings } from '../../../src/config/flags/flag-table.ts'
import { type Options, resolveOptions } from '../../../src/config/flags/options.ts'
import { parseFlags } from '../../../src/config/flags/parse-flags.ts'
import { formatRequestedText } from '../../../src/config/flags/print-request.ts'
import { parseValue, showValue } from '../../../src/config/setting.ts'
import { ProxyError } from '../../../src/lib/errors.ts'

const header = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'

function resolve(flags: string, file?: string): Options {
  return resolveArgs(
    flags.split(' ').filter((flag) => flag !== ''),
    file,
  )
}

function resolveArgs(argv: string[], file?: string): Options {
  return resolveOptions(file === undefined ? argv : ['--config=f.yaml', ...argv], (path) => {
    if (file === undefined || path !== 'f.yaml') throw new Error(`ENOENT ${path}`)
    return header + file
  })
}

function failure(run: () => unknown): ProxyError {
  try {
    run()
  } catch (error) {
    if (error instanceof ProxyError) return error
    throw error
  }
  throw new Error('nothing was thrown')
}

const problem = (flags: string, file?: string): string => {
  const error = failure(() => resolve(flags, file))
  expect(error.code).toBe('config')
  expect(error.message).not.toContain('\n')
  return error.message
}

describe('resolving flags without a file', () => {
  it('A1: uses the iptables sync flags in iptables mode', () => {
    const { config } = resolve('--iptables-sync-period=36s --iptables-min-sync-period=3s --proxy-mode=iptables')
    expect([config.syncPeriod, config.minSyncPeriod]).toEqual([36_000, 3000])
  })

  it('A2: uses only the ipvs sync flags in ipvs mode', () => {
    const { config } = resolve(
      '--iptables-sync-period=36s --iptables-min-sync-period=3s --ipvs-sync-period=16s --ipvs-min-sync-period=7s --proxy-mode=ipvs',
    )
    expect([config.syncPeriod, config.minSyncPeriod]).toEqual([16_000, 7000])
  })

  it('A3: ignores the ipvs sync flags in iptables mode', () => {
    const { config } = resolve('--ipvs-sync-period=16s --ipvs-min-sync-period=7s --proxy-mode=iptables')
    expect([config.syncPeriod, config.minSyncPeriod]).toEqual([30_000, 1000])
  })

  it('A4: uses the iptables sync flags in nftables and userspace mode too', () => {
    expect(resolve('--proxy-mode=nftables --iptables-sync-period=40s').config.syncPeriod).toBe(40_000)
    expect(resolve('--proxy-mode=userspace --iptables-sync-period=40s').config.syncPeriod).toBe(40_000)
  })

  it('gives ipvs mode a minimum of 1 s with flags and of 0 s with a file', () => {
    expect(resolve('--proxy-mode=ipvs').config.minSyncPeriod).toBe(1000)
    expect(resolve('', 'mode: ipvs\n').config.minSyncPeriod).toBe(0)
  })

  it('A5: splits --cluster-cidr in the order given', () => {
    const { config } = resolve('--cluster-cidr=2002:0:0:1234::/64,10.0.0.0/14')
    expect(config.clusterCIDRs).toEqual(['2002:0:0:1234::/64', '10.0.0.0/14'])
  })

  it('A6: refuses --cluster-cidr when it is given but empty', () => {
    expect(problem('--cluster-cidr=')).toBe('--cluster-cidr: given "", must be a valid CIDR')
    expect(resolve('').config.clusterCIDRs).toEqual([])
  })

  it('A7: keeps explicit zeros', () => {
    const { config } = resolve(
      '--conntrack-max-per-core=0 --conntrack-min=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0',
    )
    expect(config.conntrack).toMatchObject({
      maxPerCore: 0,
      min: 0,
      tcpEstablishedTimeout: 0,
      tcpCloseWaitTimeout: 0,
    })
    expect(resolve('--iptables-min-sync-period=0').config.minSyncPeriod).toBe(0)
  })

  it('A14: --bind-address does not move the default addresses to IPv6', () => {
    const { config } = resolve('--bind-address=fd00::1')
    expect(config).toMatchObject({
      bindAddress: 'fd00::1',
      healthzBindAddress: '0.0.0.0:10256',
      metricsBindAddress: '127.0.0.1:10249',
    })
  })

  it.each([
    ['1.2.3.4', '1.2.3.4:12345'],
    ['1.2.3.4:1', '1.2.3.4:1'],
    ['fd00:1::5', '[fd00:1::5]:12345'],
  ])('A15: --healthz-port turns %s into %s', (address, result) => {
    const options = resolve(`--healthz-port=12345 --healthz-bind-address=${address}`)
    expect(options.config.healthzBindAddress).toBe(result)
    expect(options.warnings).toEqual(['flag --healthz-port is deprecated: use --healthz-bind-address'])
  })

  it('A15: refuses an address in brackets without a port', () => {
    const error = failure(() => resolve('--healthz-port=12345 --healthz-bind-address=[fd00:1::5]'))
    expect(error.code).toBe('usage')
    expect(error.message).toBe('--healthz-bind-address: given "[fd00:1::5]", allowed: IP, IP:port or [IPv6]:port')
  })

  it('appends the default port to an address without a port, but not for --write-config-to', () => {
    expect(resolve('--metrics-bind-address=1.2.3.4').config.metricsBindAddress).toBe('1.2.3.4:10249')
    expect(problem('--metrics-bind-address=1.2.3.4 --write-config-to=x')).toBe(
      '--metrics-bind-address: given "1.2.3.4", must be IP:port',
    )
  })

  it('A16: --healthz-port=0 turns the health server off, --metrics-port=0 is an error', () => {
    expect(resolve('--healthz-port=0').config.healthzBindAddress).toBe('')
    expect(problem('--metrics-port=0')).toMatch(/^--metrics-port: given 0, /)
  })

  it('accepts an empty --bind-address, --healthz-bind-address or --metrics-bind-address and changes nothing', () => {
    const { config } = resolve('--bind-address= --healthz-bind-address= --metrics-bind-address=')
    expect(config).toMatchObject({
      bindAddress: '0.0.0.0',
      healthzBindAddress: '0.0.0.0:10256',
      metricsBindAddress: '127.0.0.1:10249',
    })
  })

  it('A18: accepts userspace, and lists the allowed modes for an unknown mode', () => {
    expect(resolve('--proxy-mode=userspace').config.mode).toBe('userspace')
    expect(resolve('').config.mode).toBe('iptables')
    expect(problem('--proxy-mode=kernelspace')).toBe(
      '--proxy-mode: given "kernelspace", must be one of iptables, ipvs, nftables, userspace, or empty for iptables',
    )
  })

  it('applies --masquerade-all and the mark bit in every mode', () => {
    for (const mode of ['iptables', 'ipvs', 'nftables', 'userspace']) {
      expect(resolve(`--proxy-mode=${mode} --masquerade-all`).config.masqueradeAll).toBe(true)
    }
    expect(resolve('--proxy-mode=ipvs --iptables-masquerade-bit=5').config.masqueradeBit).toBe(5)
    expect(resolve('--proxy-mode=nftables --iptables-masquerade-bit=5').config.masqueradeBit).toBe(14)
  })

  it('gives nftables mode the primary addresses, and no other mode', () => {
    expect(resolve('--proxy-mode=nftables').config.nodePortAddresses).toEqual(['primary'])
    expect(resolve('--proxy-mode=nftables --nodeport-addresses=10.0.0.0/8').config.nodePortAddresses).toEqual([
      '10.0.0.0/8',
    ])
    expect(resolve('--proxy-mode=iptables').config.nodePortAddresses).toEqual([])
  })

  it('names the flag that feeds a setting of nftables mode', () => {
    expect(problem('--proxy-mode=nftables --iptables-sync-period=0')).toContain('--iptables-sync-period: given "0s"')
  })

  it('reports every error at once, on one line', () => {
    const message = problem('--oom-score-adj=2000 --conntrack-min=-1')
    expect(message).toContain('--oom-score-adj: given 2000, must be within the range [-1000, 1000]')
    expect(message).toContain('--conntrack-min: given -1, must be greater than or equal to 0')
  })

  it('A25: refuses unknown and locked feature gates', () => {
    expect(problem('--feature-gates=NoSuchGate=true')).toContain('NoSuchGate')
    expect(problem('--feature-gates=PreferSameTrafficDistribution=false')).toContain('locked to true')
    const { config, warnings } = resolve('--feature-gates=AllowServiceExternalIPs=false --feature-gates=AllAlpha=true')
    expect(config.featureGates).toEqual({ AllowServiceExternalIPs: false, AllAlpha: true })
    expect(warnings).toHaveLength(1)
  })
})

describe('resolving flags with a file', () => {
  it('A8: logging flags beat the file, other flags do not', () => {
    const { config } = resolve(
      '-v=7 --vmodule goo.go=8 --ipvs-scheduler x --kube-api-qps=99',
      'logging:\n  verbosity: 10\n  vmodule:\n  - {filePattern: foo.go, verbosity: 6}\n  - {filePattern: bar.go, verbosity: 8}\n',
    )
    expect(config.logging.verbosity).toBe(7)
    expect(config.logging.vmodule).toEqual([
      { filePattern: 'goo.go', verbosity: 8 },
      { filePattern: 'foo.go', verbosity: 6 },
      { filePattern: 'bar.go', verbosity: 8 },
    ])
    expect(config.ipvs.scheduler).toBe('')
    expect(config.clientConnection.qps).toBe(5)
  })

  it('A23: --hostname-override beats the file, is trimmed, and must not be blank', () => {
    expect(resolveArgs(['--hostname-override=  Bar '], 'hostnameOverride: foo\n').config.hostnameOverride).toBe('bar')
    expect(resolve('', 'hostnameOverride: foo\n').config.hostnameOverride).toBe('foo')
    expect(resolve('--hostname-override=', 'hostnameOverride: foo\n').config.hostnameOverride).toBe('foo')
    expect(failure(() => resolveArgs(['--hostname-override=   '])).message).toContain(
      '--hostname-override: given "   "',
    )
  })

  it('keeps the flags that have no field', () => {
    const options = resolve('--master=http://x --cleanup --init-only --write-config-to=y', '')
    expect(options).toMatchObject({ master: 'http://x', cleanup: true, initOnly: true, writeConfigTo: 'y' })
  })

  it('names file, line and field of an invalid value, or the flag that overrode it', () => {
    expect(problem('', 'conntrack:\n  min: -1\n')).toBe(
      'f.yaml:4: conntrack.min: given -1, must be greater than or equal to 0',
    )
    expect(problem('', 'nodePortAddresses:\n- 10.0.0.0/8\n- nonsense\n')).toMatch(
      /^f\.yaml:5: nodePortAddresses\[1\]: /,
    )
    expect(problem('--logging-format=xml', 'logging: {format: json}\n')).toBe(
      '--logging-format: given "xml", must be text or json',
    )
  })

  it('A13, A17: does not apply the deprecated ports to a file', () => {
    expect(resolve('--healthz-port=0', '').config.healthzBindAddress).toBe('0.0.0.0:10256')
  })

  it('names the file that cannot be read', () => {
    const error = failure(() => resolveOptions(['--config=/nowhere'], () => readFileSync('/nowhere/at/all', 'utf8')))
    expect(error.code).toBe('config')
    expect(error.message).toMatch(/^--config: cannot read \/nowhere: .*ENOENT/)
  })

  describe('read from a directory', () => {
    let directory = ''
    beforeAll(() => {
      directory = mkdtempSync(join(tmpdir(), 'flags-'))
    })
    afterAll(() => rmSync(directory, { recursive: true }))

    it('reads a real file', () => {
      const path = join(directory, 'config.conf')
      writeFileSync(path, `${header}mode: ipvs\n`)
      const options = resolveOptions(['--config', path], (name) => readFileSync(name, 'utf8'))
      expect([options.configFile, options.config.mode]).toEqual([path, 'ipvs'])
    })
  })
})

describe('flags of old releases', () => {
  it('applies --proxy-port-range and --udp-timeout to userspace mode', () => {
    const { config, warnings } = resolve('--proxy-mode=userspace --proxy-port-range=3000-4000 --udp-timeout=1s')
    expect(config).toMatchObject({ portRange: '3000-4000', udpIdleTimeout: 1000 })
    expect(warnings).toEqual([])
    expect(failure(() => resolve('--proxy-port-range=9-1')).message).toContain('--proxy-port-range: given "9-1"')
    expect(problem('--proxy-mode=userspace --udp-timeout=0')).toContain('--udp-timeout: given "0s"')
  })

  it('reads --cleanup-iptables as --cleanup, and accepts --cleanup-ipvs', () => {
    expect(resolve('--cleanup-iptables')).toMatchObject({ cleanup: true, keptModes: [] })
    expect(resolve('--cleanup --cleanup-ipvs=false')).toMatchObject({ cleanup: true, keptModes: ['ipvs'] })
  })

  it('warns once about a flag without effect', () => {
    expect(resolve('--resource-container=/a --resource-container=/b').warnings).toHaveLength(1)
    expect(resolve('--boot-id-file=x').warnings).toHaveLength(1)
  })
})

describe('pflag syntax', () => {
  const given = (...argv: string[]) => {
    const { values, given: names } = parseFlags(flagSettings, argv)
    return Object.fromEntries(Object.entries(values).filter(([name]) => names.has(name)))
  }

  it.each([
    [['-v4'], { v: 4 }],
    [['-v=4'], { v: 4 }],
    [['-v', '4'], { v: 4 }],
    [['--v=4'], { v: 4 }],
    [['-hv4'], { help: true, v: 4 }],
    [['--proxy_mode', 'ipvs'], { 'proxy-mode': 'ipvs' }],
    [['--proxy-mode='], { 'proxy-mode': '' }],
    [['--proxy-mode=a=b'], { 'proxy-mode': 'a=b' }],
    [['--config', '--cleanup'], { config: '--cleanup' }],
    [['--cleanup=false'], { cleanup: false }],
    [['--cleanup=T', '--profiling=0'], { cleanup: true, profiling: false }],
    [['--oom-score-adj=0x10'], { 'oom-score-adj': 16 }],
    [['--oom-score-adj=-010'], { 'oom-score-adj': -8 }],
    [['--oom-score-adj=-1_000'], { 'oom-score-adj': -1000 }],
    [['--nodeport-addresses=a,b', '--nodeport-addresses=c'], { 'nodeport-addresses': ['a', 'b', 'c'] }],
    [['--nodeport-addresses="a,b",c'], { 'nodeport-addresses': ['a,b', 'c'] }],
    [['--nodeport-addresses='], { 'nodeport-addresses': [] }],
    [['--feature-gates=A=true,B=f', '--feature-gates=A=false'], { 'feature-gates': { A: false, B: false } }],
    [['--ipvs-tcp-timeout=2h22m'], { 'ipvs-tcp-timeout': 8_520_000 }],
    [['--version'], { version: 'true' }],
    [['--version=raw'], { version: 'raw' }],
    [['--bind-address=010.1.2.3'], { 'bind-address': '010.1.2.3' }],
    [['--healthz-bind-address=1.2.3.4:0'], { 'healthz-bind-address': '1.2.3.4:0' }],
  ])('reads %j', (argv, expected) => {
    expect(given(...argv)).toEqual(expected)
  })

  it.each([
    [['--cleanup=maybe'], '--cleanup: given "maybe", allowed: true or false'],
    [['--config-sync-period=5'], '--config-sync-period: given "5", allowed: a duration such as'],
    [['--kube-api-burst=1.5'], '--kube-api-burst: given "1.5", allowed: a whole number'],
    [['--kube-api-qps=1e60'], '--kube-api-qps: given "1e60", allowed: a number of 32 bits'],
    [['--oom-score-adj=2147483648'], '--oom-score-adj: given "2147483648"'],
    [['--oom-score-adj=08'], '--oom-score-adj: given "08"'],
    [['-v=-1'], '-v: given "-1", allowed: a whole number from 0'],
    [['-v='], '-v: given "="'],
    [['--vmodule=x'], '--vmodule: given "x"'],
    [['--feature-gates=A'], '--feature-gates: given "A"'],
    [['--nodeport-addresses=a"b'], '--nodeport-addresses: given "a\\"b"'],
    [['--bind-address=nope'], '--bind-address: given "nope", allowed: an IP address'],
    [['--metrics-bind-address=1.2.3.4:65536'], '--metrics-bind-address: given'],
    [['--log-text-info-buffer-size=1K'], '--log-text-info-buffer-size: given "1K"'],
    [['--version=1.2'], '--version: given "1.2"'],
    [['--config'], '--config: needs a value'],
    [['--proxy-mod=ipvs'], 'unknown flag: --proxy-mod (did you mean --proxy-mode?)'],
    [['--windows-service'], 'unknown flag: --windows-service'],
    [['---v'], 'bad flag syntax: ---v'],
    [['--=v'], 'bad flag syntax: --=v'],
    [['-x'], "unknown shorthand flag: 'x' in -x"],
    [['stray'], 'unexpected argument "stray"'],
    [['--cleanup', 'true'], 'unexpected argument "true"'],
    [['--', '--cleanup'], 'unexpected argument "--cleanup"'],
  ])('refuses %j', (argv, message) => {
    const error = failure(() => resolveArgs(argv))
    expect(error.code).toBe('usage')
    expect(error.message).toContain(message)
  })

  it('tolerates empty arguments', () => {
    expect(resolveArgs(['', '--cleanup', '']).cleanup).toBe(true)
  })

  it('reads a file for --version=false and for a version to report', () => {
    expect(resolveArgs(['--version=false']).version).toBe('')
    expect(resolveArgs(['--version=v1.99.0']).version).toBe('v1.99.0')
    expect(failure(() => resolveArgs(['--version=v1.99.0', '--config=missing'])).code).toBe('config')
  })

  it('shows every flag with its effective value, given or not', () => {
    const { flags, given: names } = resolve('--v=3 --nodeport-addresses=10.0.0.0/8,::/0 --feature-gates=AllBeta=true')
    expect(flags.size).toBe(flagSettings.length)
    expect(flags.get('v')).toBe('3')
    expect(flags.get('nodeport-addresses')).toBe('[10.0.0.0/8,::/0]')
    expect(flags.get('feature-gates')).toBe('AllBeta=true')
    expect(flags.get('config-sync-period')).toBe('15m0s')
    expect(names).toEqual(new Set(['v', 'nodeport-addresses', 'feature-gates']))
  })

  it('parses the text that it shows, whatever the value', () => {
    const word = fc.stringMatching(/^[a-z0-9.:/-]{0,12}$/)
    const texts: Record<string, fc.Arbitrary<string>> = {
      string: word,
      bool: fc.constantFrom('true', 'false'),
      int32: fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }).map(String),
      float32: fc.float({ noNaN: true, noDefaultInfinity: true }).map(String),
      duration: fc.integer({ min: -1e9, max: 1e12 }).map((ms) => `${ms}ms`),
      flushFrequency: fc.integer({ min: 1, max: 1e9 }).map((us) => `${us}us`),
      list: fc
        .array(fc.stringMatching(/^[a-z",]{1,6}$/), { minLength: 1 })
        .map((all) => all.map((each) => `"${each.replaceAll('"', '""')}"`).join(',')),
      gates: fc.dictionary(fc.stringMatching(/^[A-Z][a-z]{1,5}$/), fc.boolean()).map((all) =>
        Object.entries(all)
          .map(([name, on]) => `${name}=${on}`)
          .join(','),
      ),
      ip: fc.ipV4(),
      ipPort: fc.tuple(fc.ipV6(), fc.nat(65535)).map(([ip, port]) => `[${ip}]:${port}`),
      level: fc.nat(2 ** 31 - 1).map(String),
      vmodule: fc.array(fc.nat(9)).map((all) => all.map((level) => `file${level}=${level}`).join(',')),
      quantity: fc.tuple(fc.nat(1000), fc.constantFrom('', 'k', 'Mi')).map(([n, unit]) => `${n}${unit}`),
      portRange: fc.tuple(fc.nat(30_000), fc.nat(30_000)).map(([low, size]) => `${low}-${low + size}`),
      version: fc.constantFrom('true', 'false', 'raw', 'v1.2.3'),
    }
    fc.assert(
      fc.property(
        fc
          .constantFrom(...flagSettings)
          .chain((row) => fc.tuple(fc.constant(row), texts[row.kind] as fc.Arbitrary<string>)),
        ([row, text]) => {
          const value = parseFlags(flagSettings, [`--${row.flag}=${text}`]).values[row.flag]
          const shown = showValue(row, value).replace(/^\[(.*)\]$/, row.kind === 'list' ? '$1' : '[$1]')
          expect(parseValue(row, shown, row.default, true)).toEqual(value)
        },
      ),
      { numRuns: 500 },
    )
  })
})

describe('a command line that only asks for a text', () => {
  it('is answered without a file, also if the file is missing', () => {
    expect(formatRequestedText(['--version', '--config=missing'])).toBe('Kubernetes v1.36.4\n')
    expect(JSON.parse(formatRequestedText(['--version=raw']) ?? '')).toMatchObject({
      gitVersion: 'v1.36.4',
      minor: '36',
    })
    for (const argv of [['-h', '--config=missing'], ['--help', 'stray'], ['-hv4']]) {
      expect(formatRequestedText(argv)).toBe(formatUsage())
    }
  })

  it('is not one that runs the proxy or cannot be parsed', () => {
    for (const argv of [[], ['--version=false'], ['--version=v1.99.0'], ['--version', 'stray'], ['--nonsense']]) {
      expect(formatRequestedText(argv)).toBeUndefined()
    }
  })
})

describe('help', () => {
  it('names every flag and no flag twice', () => {
    const text = formatUsage()
    for (const row of flagSettings) expect(text).toMatch(new RegExp(`^ .*--${row.flag}( |\\[|$)`, 'm'))
    expect(new Set(flagSettings.map((row) => row.flag)).size).toBe(flagSettings.length)
    for (const line of text.split('\n')) expect(line.length, line).toBeLessThanOrEqual(100)
  })

  it('keeps docs/flags.md up to date', async () => {
    await expect(formatFlagDocs()).toMatchFileSnapshot('../../../docs/flags.md')
  })
})
