// What of this machine matters to a proxy: kernel, privileges, programs, settings, and whoever else writes rules.

import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { release } from 'node:os'
import { type Finding, ok } from '../../backend/finding.ts'
import { findDroppingPolicies } from '../../backend/iptables-kit/program-findings.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import { modes } from '../../backend/modes.ts'
import type { Leftover, ProxyMode } from '../../backend/proxy-mode.ts'
import { settingsOf } from '../../daemon/backend-settings.ts'
import { describeError } from '../../lib/errors.ts'
import { familyName } from '../../lib/ip.ts'
import { atLeast, ipv6Available, kernelVersion } from '../../sys/kernel-facts.ts'
import { runProgram } from '../../sys/process/exec.ts'
import { readSysctl } from '../../sys/sysctl.ts'
import { configFrom } from '../sources/source.ts'

export async function machineFindings(mode: ProxyMode): Promise<readonly Finding[]> {
  const leftovers = await findLeftovers().catch(() => [] as readonly Leftover[])
  return [
    kernel(),
    privileges(mode),
    await modeWorks(mode),
    ...(await mode.doctor.findings()),
    ...(await programs()),
    ...settings(),
    conntrack(),
    openFiles(),
    ...modules(),
    ...otherProxies(mode.name, leftovers),
    ...(await firewalls()),
    clock(),
  ]
}

function kernel(): Finding {
  const about = 'kernel'
  const version = kernelVersion()
  const works = ({ doctor }: ProxyMode) =>
    doctor.minimumKernel === undefined || atLeast(version, ...doctor.minimumKernel)
  const tooNew = modes.filter((mode) => !works(mode))
  if (tooNew.length === 0) return ok(about, release())
  const names = modes.filter(works).map(({ name }) => name)
  const needs = tooNew.map(({ name, doctor }) => `${name} mode needs Linux ${doctor.minimumKernel?.join('.')} or later`)
  return {
    level: 'problem',
    about,
    found: release(),
    meaning: `${needs.join(', ')}; these modes work: ${names.join(', ')}.`,
    todo: `Update the kernel, or use --proxy-mode ${names.join(' or ')}.`,
  }
}

function privileges(mode: ProxyMode): Finding {
  const about = 'privileges'
  const bits = BigInt(`0x${/^CapEff:\s*([0-9a-f]+)/m.exec(readText('/proc/self/status'))?.[1] ?? '0'}`)
  const netAdmin = ((bits >> 12n) & 1n) === 1n
  if (netAdmin) return ok(about, process.getuid?.() === 0 ? 'root' : 'CAP_NET_ADMIN')
  return {
    level: mode.doctor.needsNetAdmin ? 'problem' : 'note',
    about,
    found: 'no CAP_NET_ADMIN',
    meaning: 'Rules cannot be written or even looked at; what follows is incomplete.',
    todo: 'Run with sudo, or give the container the NET_ADMIN capability (or privileged: true).',
  }
}

/** The backend itself knows best what it needs. */
async function modeWorks({ name, makeBackend }: ProxyMode): Promise<Finding> {
  const about = `mode ${name}`
  try {
    const families = await makeBackend(settingsOf(configFrom(new Map([['mode', name]])))).families()
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

async function programs(): Promise<readonly Finding[]> {
  const found: Finding[] = []
  for (const [program, args, why] of [
    ['ip', ['-V'], 'sluice up --demo and sluice plan make network namespaces with it'],
    ['nft', ['--version'], 'nothing of ours needs it; people read rules with it'],
  ] as const) {
    try {
      const { stdout, stderr } = await runProgram(program, args, { deadlineMs: 5_000 })
      found.push(ok(program, (stdout || stderr).trim().split('\n')[0] as string))
    } catch {
      found.push({
        level: 'note',
        about: program,
        found: 'not installed',
        meaning: `${why}.`,
        todo: 'Install it if you want that.',
      })
    }
  }
  return found
}

interface Setting {
  readonly name: string
  readonly good: readonly string[]
  readonly level: 'warning' | 'problem'
  readonly meaning: string
}

const wanted: readonly Setting[] = [
  {
    name: 'net/ipv4/ip_forward',
    good: ['1'],
    level: 'problem',
    meaning: 'Without it nothing is forwarded: pods and outside clients reach no service through this node.',
  },
  {
    name: 'net/ipv6/conf/all/forwarding',
    good: ['1'],
    level: 'warning',
    meaning: 'Without it no IPv6 service is reachable through this node.',
  },
  {
    name: 'net/bridge/bridge-nf-call-iptables',
    good: ['1'],
    level: 'warning',
    meaning:
      'Pods on one bridge reach a service that chooses a neighbour, but the answer bypasses the rules and is lost.',
  },
]

function settings(): readonly Finding[] {
  return wanted.flatMap(({ name, good, level, meaning }) => {
    const value = readSysctl(name)
    const about = `sysctl ${name.replaceAll('/', '.')}`
    // Absent: no IPv6, or no bridge module.
    if (value === undefined || (name.includes('ipv6') && !ipv6Available())) return []
    if (good.includes(value)) return [ok(about, value)]
    return [
      {
        level,
        about,
        found: value,
        meaning,
        todo: `sysctl -w ${name.replaceAll('/', '.')}=${good[0]}, and keep it in /etc/sysctl.d.`,
      },
    ]
  })
}

function conntrack(): Finding {
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
    meaning: 'When it is full, new connections are dropped at random.',
    todo: 'Raise --conntrack-max-per-core, or shorten the timeouts of idle connections.',
  }
}

function openFiles(): Finding {
  const about = 'open files'
  const limit = /^Max open files\s+(\d+)/m.exec(readText('/proc/self/limits'))?.[1] ?? ''
  if (Number(limit) >= 4096 || limit === '') return ok(about, limit || 'unlimited')
  const relaying = modes.filter(({ doctor }) => doctor.filesPerConnection > 0).map(({ name }) => name)
  return {
    level: 'note',
    about,
    found: limit,
    meaning: `Enough for modes that forward in the kernel; ${relaying.join(' and ')} mode needs more for each connection.`,
    todo: `LimitNOFILE=1048576 in the unit, for ${relaying.join(' and ')} mode.`,
  }
}

function modules(): readonly Finding[] {
  const loaded = new Set(
    readText('/proc/modules')
      .split('\n')
      .map((line) => line.split(' ')[0]),
  )
  const known = ['nf_tables', 'nf_conntrack', 'nf_nat', 'ip_vs', 'br_netfilter'].filter((name) => loaded.has(name))
  return [ok('modules', known.length === 0 ? 'built in, or loaded when needed' : known.join(', '))]
}

// ---- Whoever else writes rules. ----

function otherProxies(mode: string, leftovers: readonly Leftover[]): readonly Finding[] {
  const running = proxyProcesses()
  const found: Finding[] = []
  const programs = new Set(running.map(({ name }) => name))
  if (running.length > 1) {
    found.push({
      level: 'problem',
      about: 'proxies',
      found: running.map(({ pid, name }) => `${name} (pid ${pid})`).join(', '),
      meaning: 'Two proxies on one node undo each other’s work or translate packets twice.',
      todo: 'Stop all but one; for kube-proxy, take this node out of its DaemonSet.',
    })
  } else found.push(ok('proxies', running.length === 0 ? 'none runs' : [...programs].join()))
  const modes = [...new Set(leftovers.map((one) => one.mode))]
  const others = modes.filter((one) => one !== mode)
  if (modes.length > 1 || (others.length > 0 && running.length === 0)) {
    found.push({
      level: 'warning',
      about: 'rules of proxies',
      found: leftovers.map(({ mode: whose, what, where }) => `${whose}: ${what} in ${where}`).join('; '),
      meaning: 'Rules of another mode still translate packets: old endpoints answer, or nobody does.',
      todo: 'sluice cleanup --dry-run shows them, sluice cleanup removes them (the proxy puts its own back).',
    })
  } else found.push(ok('rules of proxies', modes.length === 0 ? 'none' : modes.join()))
  return found
}

function proxyProcesses(): readonly { readonly pid: number; readonly name: string }[] {
  const found: { pid: number; name: string }[] = []
  for (const entry of readdirSync('/proc')) {
    const pid = Number(entry)
    if (!Number.isInteger(pid) || pid === process.pid) continue
    const words = readText(`/proc/${pid}/cmdline`).split('\0')
    const program = words.find((word) => /(^|\/)(kube-proxy|sluice)$/.test(word))
    if (program === undefined) continue
    const name = program.endsWith('kube-proxy') ? 'kube-proxy' : 'sluice'
    const serves = name === 'kube-proxy' || words.includes('proxy') || words.includes('up')
    if (serves && sameNetwork(pid)) found.push({ pid, name })
  }
  return found
}

/** A proxy in another network namespace is none of ours. */
const sameNetwork = (pid: number): boolean => {
  try {
    return readlinkSync(`/proc/${pid}/ns/net`) === readlinkSync('/proc/self/ns/net')
  } catch {
    return false
  }
}

async function firewalls(): Promise<readonly Finding[]> {
  const found: Finding[] = [...(await findDroppingPolicies())]
  for (const name of await foreignTables()) {
    found.push({
      level: 'note',
      about: `firewall: table ${name}`,
      found: 'another program’s nf_tables table',
      meaning: 'A packet must be accepted by every table: what it drops, no proxy can accept.',
      todo: `nft list table ${name}: allow forwarding to and from pods, node ports, and the health check ports.`,
    })
  }
  return found.length > 0 ? found : [ok('firewalls', 'none in the way')]
}

/** `family name` of tables that are neither ours nor those that iptables keeps there. */
async function foreignTables(): Promise<readonly string[]> {
  try {
    const { stdout } = await runProgram('nft', ['list', 'tables'], { deadlineMs: 10_000 })
    const tables = [...stdout.matchAll(/^table (\S+) (\S+)/gm)].map(([, family, name]) => `${family} ${name}`)
    return tables.filter((table) => !/^(ip|ip6|arp|bridge) (filter|nat|mangle|raw|security|kube-proxy)$/.test(table))
  } catch {
    // Without the program, or the right to ask, nothing is said about others.
    return []
  }
}

function clock(): Finding {
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

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
