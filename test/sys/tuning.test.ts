import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { resolveOptions } from '../../src/config/flags/options.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { atLeast, ipv6Available, kernelVersion, parseKernelVersion } from '../../src/sys/kernel-facts.ts'
import { ensureSysctl, readSysctl } from '../../src/sys/sysctl.ts'
import { countCpus, type KernelFiles, setOomScore, tcpIsLiberal, tuneConntrack } from '../../src/sys/tuning.ts'

let root: string
let files: KernelFiles

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'sluice-tuning-'))
  files = { proc: join(root, 'proc'), sys: join(root, 'sys') }
  put('sys/module/nf_conntrack/parameters/hashsize', '65536\n')
  const values = {
    max: 262144,
    tcp_timeout_established: 432000,
    tcp_timeout_close_wait: 60,
    tcp_be_liberal: 0,
    udp_timeout: 30,
    udp_timeout_stream: 120,
  }
  for (const [name, value] of Object.entries(values)) put(conntrack(name), `${value}\n`)
})

afterEach(() => rmSync(root, { recursive: true }))

const conntrack = (name: string) => `proc/sys/net/netfilter/nf_conntrack_${name}`

function put(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true })
  writeFileSync(join(root, path), text)
}

const read = (path: string) => readFileSync(join(root, path), 'utf8').trim()

const caught = (run: () => unknown): ProxyError => {
  try {
    run()
  } catch (error) {
    if (error instanceof ProxyError) return error
    throw error
  }
  throw new Error('did not throw')
}

describe('conntrack settings', () => {
  it('writes settings that differ, and returns them', () => {
    const changed = tuneConntrack(
      { max: 1048576, tcpEstablishedMs: 86_400_000, tcpCloseWaitMs: 3_600_000, tcpBeLiberal: true, udpMs: 30_000 },
      files,
    )
    expect(changed).toEqual([
      'nf_conntrack_max=1048576',
      'hashsize=262144',
      'nf_conntrack_tcp_timeout_established=86400',
      'nf_conntrack_tcp_timeout_close_wait=3600',
      'nf_conntrack_tcp_be_liberal=1',
    ])
    expect(read(conntrack('max'))).toBe('1048576')
    expect(read('sys/module/nf_conntrack/parameters/hashsize')).toBe('262144')
    expect(read(conntrack('udp_timeout_stream'))).toBe('120')
    expect(tcpIsLiberal(files)).toBe(true)
  })

  it('B19: a setting that is zero or absent is not written', () => {
    const before = statSync(join(root, conntrack('max'))).mtimeMs
    const zero = { max: 0, tcpEstablishedMs: 0, tcpCloseWaitMs: 0, tcpBeLiberal: false, udpMs: 0, udpStreamMs: 0 }
    expect(tuneConntrack(zero, files)).toEqual([])
    expect(tuneConntrack({}, files)).toEqual([])
    expect(statSync(join(root, conntrack('max'))).mtimeMs).toBe(before)
    expect(tcpIsLiberal(files)).toBe(false)
  })

  it('B19: a setting that cannot be changed fails the start, and the error says what to do', () => {
    rmSync(join(root, conntrack('udp_timeout')))
    rmSync(join(root, 'proc/sys/net/netfilter'), { recursive: true })
    const error = caught(() => tuneConntrack({ udpMs: 90_000 }, files))
    expect(error.code).toBe('sysctl')
    expect(error.fields).toEqual({ file: join(root, conntrack('udp_timeout')), wanted: '90', current: undefined })
    expect(error.message).toContain('is its module loaded?')
    expect(error.message).toContain('--conntrack-udp-timeout=0')
  })

  it.each([
    ['max', { max: 1 }],
    ['tcp_timeout_established', { tcpEstablishedMs: 1 }],
    ['tcp_timeout_close_wait', { tcpCloseWaitMs: 1 }],
    ['tcp_be_liberal', { tcpBeLiberal: true }],
    ['udp_timeout', { udpMs: 1 }],
    ['udp_timeout_stream', { udpStreamMs: 1 }],
  ])(
    'nf_conntrack_%s: what the error advises leaves the setting alone, as a flag and in the file of --config',
    (name, settings) => {
      rmSync(join(root, conntrack(name)))
      mkdirSync(join(root, conntrack(name)))
      const { message } = caught(() => tuneConntrack(settings, files))
      const advice =
        /leave the setting alone with (--\S+), or with conntrack\.(\w+): (\S+) in the file that --config names$/
      const [, flag = '', field = '', value] = advice.exec(message) ?? expect.fail(message)
      const file = `apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: {${field}: ${value}}`
      for (const { config } of [resolveOptions([flag], () => ''), resolveOptions(['--config=file'], () => file)]) {
        expect([0, false]).toContain(config.conntrack[field as keyof typeof config.conntrack])
      }
    },
  )

  it('never shrinks the hash table, and fails if its size is unknown', () => {
    put('sys/module/nf_conntrack/parameters/hashsize', '9999999\n')
    tuneConntrack({ max: 131072 }, files)
    expect(read('sys/module/nf_conntrack/parameters/hashsize')).toBe('9999999')
    rmSync(join(root, 'sys'), { recursive: true })
    const error = caught(() => tuneConntrack({ max: 131072 }, files))
    expect(error.message).toContain('hashsize')
    expect(error.message).toContain('--conntrack-max-per-core=0')
  })

  it('rounds up to seconds, because zero would mean at once', () => {
    tuneConntrack({ udpMs: 1 }, files)
    expect(read(conntrack('udp_timeout'))).toBe('1')
  })
})

describe('sysctl', () => {
  it('reads a setting, writes it if it differs, and reports what is wrong', () => {
    put('proc/sys/net/ipv4/ip_forward', '0\n')
    const at = join(root, 'proc/sys')
    expect(readSysctl('net/ipv4/ip_forward', at)).toBe('0')
    expect(ensureSysctl('net/ipv4/ip_forward', 1, at)).toBe(true)
    expect(ensureSysctl('net/ipv4/ip_forward', 1, at)).toBe(false)
    expect(readSysctl('net/nothing', at)).toBeUndefined()
    mkdirSync(join(at, 'net/dir'))
    const error = caught(() => ensureSysctl('net/dir', 1, at))
    expect(error.message).toBe(`cannot set ${join(at, 'net/dir')} to 1, it cannot be read: the write failed`)
  })

  it.runIf(process.getuid?.() !== 0)('says that a file is read-only', () => {
    put('proc/sys/net/ipv4/ip_forward', '0\n')
    chmodSync(join(root, 'proc/sys/net/ipv4/ip_forward'), 0o400)
    expect(caught(() => ensureSysctl('net/ipv4/ip_forward', 1, join(root, 'proc/sys'))).message).toContain(
      'run privileged',
    )
  })
})

describe('the machine', () => {
  it('sets the OOM score', () => {
    put('proc/self/oom_score_adj', '0\n')
    setOomScore(-999, files)
    expect(read('proc/self/oom_score_adj')).toBe('-999')
  })

  it.each([
    ['0\n', 1],
    ['0-63\n', 64],
    ['0-3,8-11,15\n', 9],
  ])('counts the CPUs that are on: %j is %i', (text, count) => {
    put('sys/devices/system/cpu/online', text)
    expect(countCpus(files)).toBe(count)
  })

  it('counts the CPUs of the process if the kernel does not list them', () => {
    expect(countCpus(files)).toBeGreaterThan(0)
  })

  it('B17: IPv6 is available unless it is absent or disabled', () => {
    expect(ipv6Available(files)).toBe(false)
    put('proc/net/if_inet6', '')
    put('proc/sys/net/ipv6/conf/all/disable_ipv6', '0\n')
    expect(ipv6Available(files)).toBe(true)
    put('proc/sys/net/ipv6/conf/all/disable_ipv6', '1\n')
    expect(ipv6Available(files)).toBe(false)
  })

  it('reads kernel versions', () => {
    expect(parseKernelVersion('6.18.44-fc-v445')).toEqual({ major: 6, minor: 18, patch: 44 })
    expect(parseKernelVersion('5.15-rc1')).toEqual({ major: 5, minor: 15, patch: 0 })
    expect(parseKernelVersion('linux')).toBeUndefined()
    expect(kernelVersion().major).toBeGreaterThan(0)
    const version = { major: 5, minor: 13, patch: 0 }
    expect([atLeast(version, 5, 13), atLeast(version, 4, 20), atLeast(version, 5, 14), atLeast(version, 6, 0)]).toEqual(
      [true, true, false, false],
    )
  })
})
