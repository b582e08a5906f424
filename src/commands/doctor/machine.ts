// Checks what a proxy needs from this machine: kernel, privileges, programs, sysctls, limits and clock.

import { release } from 'node:os'
import { couldNotLook, type Finding, ok } from '../../backend/finding.ts'
import { modes } from '../../backend/modes.ts'
import type { ProxyMode } from '../../backend/proxy-mode.ts'
import { makeSettings } from '../../daemon/backend-settings.ts'
import { describeError } from '../../lib/errors.ts'
import { familyName } from '../../lib/ip.ts'
import { atLeast, ipv6Available, kernelVersion } from '../../sys/kernel-facts.ts'
import { runProgram } from '../../sys/process/exec.ts'
import { readSysctl } from '../../sys/sysctl.ts'
import { configFrom } from '../sources/source.ts'
import { readTextOrEmpty } from '../text-file.ts'

interface ExaminedPlace {
  /** The process id of the running proxy; 0 if there is none. */
  readonly pid: number
  /** What to put before a command so that it runs in the network namespace of the proxy. */
  readonly prefix: string
}

export async function examineMachine(
  mode: ProxyMode,
  { pid, prefix }: ExaminedPlace = { pid: 0, prefix: '' },
): Promise<readonly Finding[]> {
  return [
    checkKernel(),
    checkPrivileges(mode),
    await checkMode(mode),
    ...(await mode.doctor.findings()),
    ...(await Promise.all(optionalPrograms.map(checkProgram))),
    ...sysctls.flatMap((sysctl) => checkSysctl(sysctl, prefix) ?? []),
    checkConntrack(),
    checkOpenFiles(pid),
    listModules(),
  ]
}

/** Without /proc, as in a bare chroot, everything would look absent: privileges, processes, settings. Returns undefined if it is there. */
export function checkProc(): Finding | undefined {
  if (readTextOrEmpty('/proc/self/status') !== '') return undefined
  return {
    level: 'problem',
    about: '/proc',
    found: 'not mounted',
    meaning: 'Neither privileges nor processes nor settings can be looked at here, so that nothing else was checked.',
    todo: 'mount -t proc proc /proc (in a chroot or container: inside of it), and run this command again.',
  }
}

function checkKernel(): Finding {
  const about = 'kernel'
  const version = kernelVersion()
  const isSupported = ({ doctor }: ProxyMode) =>
    doctor.minimumKernel === undefined || atLeast(version, ...doctor.minimumKernel)
  const unsupported = modes.filter((mode) => !isSupported(mode))
  if (unsupported.length === 0) return ok(about, release())
  const names = modes.filter(isSupported).map(({ name }) => name)
  const needs = unsupported.map(
    ({ name, doctor }) => `${name} mode needs Linux ${doctor.minimumKernel?.join('.')} or later`,
  )
  return {
    level: 'problem',
    about,
    found: release(),
    meaning: `${needs.join(', ')}; these modes work: ${names.join(', ')}.`,
    todo: `Update the kernel, or use mode ${names.join(' or ')} (mode in the file of --config, else --proxy-mode).`,
  }
}

/** The bit of CAP_NET_ADMIN in the capability sets of /proc/PID/status. */
const netAdminBit = 12n

/** Without it, rules can be neither written nor read. */
export function hasNetAdmin(): boolean {
  const effective = /^CapEff:\s*([0-9a-f]+)/m.exec(readTextOrEmpty('/proc/self/status'))?.[1] ?? '0'
  return ((BigInt(`0x${effective}`) >> netAdminBit) & 1n) === 1n
}

function checkPrivileges(mode: ProxyMode): Finding {
  const about = 'privileges'
  if (hasNetAdmin()) return ok(about, process.getuid?.() === 0 ? 'root' : 'CAP_NET_ADMIN')
  return {
    level: mode.doctor.needsNetAdmin ? 'problem' : 'note',
    about,
    found: 'no CAP_NET_ADMIN',
    meaning:
      'Rules can be neither written nor read: a proxy does not work like this, and parts of this report are unknown.',
    todo: 'Run with sudo, or give the container the NET_ADMIN capability (or privileged: true).',
  }
}

/** Asks the mode itself whether it works here. */
async function checkMode({ name, makeBackend, doctor }: ProxyMode): Promise<Finding> {
  const about = `mode ${name}`
  if (!hasNetAdmin() && doctor.needsNetAdmin) return couldNotLook(about, 'that needs CAP_NET_ADMIN')
  try {
    const families = await makeBackend(makeSettings(configFrom(new Map([['mode', name]])))).families()
    return ok(about, `works, ${families.map(familyName).join(' and ')}`)
  } catch (error) {
    return {
      level: 'problem',
      about,
      found: describeError(error),
      meaning: 'The proxy will not start in this mode.',
      todo: 'Do what the line above says, or choose another mode.',
    }
  }
}

interface OptionalProgram {
  readonly name: string
  readonly versionFlag: string
  readonly use: string
}

const optionalPrograms: readonly OptionalProgram[] = [
  { name: 'ip', versionFlag: '-V', use: 'sluice up --demo and sluice plan make network namespaces with it.' },
  { name: 'nft', versionFlag: '--version', use: 'Sluice does not need it; people read rules with it.' },
]

async function checkProgram({ name, versionFlag, use }: OptionalProgram): Promise<Finding> {
  try {
    const { stdout, stderr } = await runProgram(name, [versionFlag], { deadlineMs: 5_000 })
    return ok(name, (stdout || stderr).trim().split('\n')[0] ?? '')
  } catch {
    return { level: 'note', about: name, found: 'not installed', meaning: use, todo: 'Install it if you want that.' }
  }
}

interface ExpectedSysctl {
  readonly name: string
  readonly expected: string
  readonly level: 'warning' | 'problem'
  readonly meaning: string
}

const sysctls: readonly ExpectedSysctl[] = [
  {
    name: 'net/ipv4/ip_forward',
    expected: '1',
    level: 'problem',
    meaning: 'The kernel forwards nothing: pods and outside clients reach no service through this node.',
  },
  {
    name: 'net/ipv6/conf/all/forwarding',
    expected: '1',
    level: 'warning',
    meaning: 'The kernel does not forward IPv6: no IPv6 service can be reached through this node.',
  },
  {
    name: 'net/bridge/bridge-nf-call-iptables',
    expected: '1',
    level: 'warning',
    meaning: 'If a service chooses a pod on the same bridge as its client, the answer bypasses the rules and is lost.',
  },
]

/** Returns undefined if the sysctl does not exist here: there is no IPv6, or the bridge module is not loaded. */
function checkSysctl({ name, expected, level, meaning }: ExpectedSysctl, prefix: string): Finding | undefined {
  const value = readSysctl(name)
  if (value === undefined || (name.includes('ipv6') && !ipv6Available())) return undefined
  const dotted = name.replaceAll('/', '.')
  const about = `sysctl ${dotted}`
  if (value === expected) return ok(about, value)
  const command = `${prefix}sysctl -w ${dotted}=${expected}`
  return { level, about, found: value, meaning, todo: `${command}, and keep it in /etc/sysctl.d.` }
}

function checkConntrack(): Finding {
  const about = 'connection tracking'
  const tracked = Number(readSysctl('net/netfilter/nf_conntrack_count') ?? Number.NaN)
  const limit = Number(readSysctl('net/netfilter/nf_conntrack_max') ?? Number.NaN)
  if (Number.isNaN(tracked) || Number.isNaN(limit)) {
    return {
      level: 'note',
      about,
      found: 'nf_conntrack is not loaded',
      meaning: 'The kernel loads it with the first rule that needs it.',
      todo: 'Nothing.',
    }
  }
  if (tracked < 0.8 * limit) return ok(about, `${tracked} of ${limit} connections`)
  return {
    level: 'warning',
    about,
    found: `${tracked} of ${limit} connections`,
    meaning: 'When the table is full, the kernel drops new connections at random.',
    todo: 'Raise conntrack.maxPerCore in the file of --config (without one: --conntrack-max-per-core), or shorten the timeouts of idle connections.',
  }
}

/** The limit of the running proxy counts, else that of this command. */
function checkOpenFiles(pid: number): Finding {
  const about = 'open files'
  const limits = readTextOrEmpty(`/proc/${pid}/limits`) || readTextOrEmpty('/proc/self/limits')
  const limit = /^Max open files\s+(\d+)/m.exec(limits)?.[1] ?? ''
  if (Number(limit) >= 4096 || limit === '') return ok(about, limit || 'unlimited')
  const relaying = modes.filter(({ doctor }) => doctor.filesPerConnection > 0).map(({ name }) => name)
  return {
    level: 'note',
    about,
    found: limit,
    meaning: `Enough for modes that forward in the kernel; ${relaying.join(' and ')} mode needs files for each connection.`,
    todo: `LimitNOFILE=1048576 in the unit, for ${relaying.join(' and ')} mode.`,
  }
}

function listModules(): Finding {
  const loaded = new Set(
    readTextOrEmpty('/proc/modules')
      .split('\n')
      .map((line) => line.split(' ')[0]),
  )
  const relevant = ['nf_tables', 'nf_conntrack', 'nf_nat', 'ip_vs', 'br_netfilter'].filter((name) => loaded.has(name))
  return ok('modules', relevant.length === 0 ? 'built in, or loaded when needed' : relevant.join(', '))
}

export function checkClock(): Finding {
  const about = 'clock'
  const now = new Date()
  if (now.getUTCFullYear() >= 2024) return ok(about, now.toISOString())
  return {
    level: 'problem',
    about,
    found: now.toISOString(),
    meaning: 'Certificates are “not yet valid” and tokens are refused: the API server cannot be reached.',
    todo: 'Set the clock; run chrony or systemd-timesyncd.',
  }
}
