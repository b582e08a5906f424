// What a mode may do on a node, as it is shipped with the manifests (deploy/privileges.json and deploy/seccomp), and the document about it.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'

const deployFolder = join(import.meta.dirname, '../deploy')

export const privilegedModes = ['nftables', 'iptables', 'ipvs', 'userspace'] as const
export type PrivilegedMode = (typeof privilegedModes)[number]

interface Identity {
  readonly uid: number
  /** Without the prefix CAP_. */
  readonly capabilities: readonly string[]
}

export interface Privileges extends Identity {
  /** What the legacy flavour of iptables needs instead: its tables are named in a file that only root may read. */
  readonly legacyFlavour?: Identity
  /** Folders have a slash at their end. */
  readonly writable: readonly string[]
  /** The names of all programs that the proxy may start. */
  readonly programs: readonly string[]
}

/** A comparison of an argument. With SCMP_CMP_MASKED_EQ, `value` is the mask and `valueTwo` what must be left of the argument. */
export interface ArgumentRule {
  readonly index: number
  readonly value: number
  readonly valueTwo?: number
  readonly op: string
}

interface SyscallRule {
  readonly names: readonly string[]
  readonly action: string
  readonly errnoRet?: number
  readonly args?: readonly ArgumentRule[]
  readonly comment?: string
}

export interface SeccompProfile {
  readonly defaultAction: string
  readonly defaultErrnoRet?: number
  readonly architectures: readonly string[]
  readonly syscalls: readonly SyscallRule[]
}

const readJson = (...path: string[]): unknown => JSON.parse(readFileSync(join(deployFolder, ...path), 'utf8'))

export const privilegesOf = (mode: PrivilegedMode): Privileges =>
  (readJson('privileges.json') as Record<PrivilegedMode, Privileges>)[mode]

export function identityOf(mode: PrivilegedMode, flavour?: 'nft' | 'legacy'): Identity {
  const privileges = privilegesOf(mode)
  return flavour === 'legacy' ? (privileges.legacyFlavour ?? privileges) : privileges
}

export const profilePath = (mode: PrivilegedMode): string => join(deployFolder, 'seccomp', `${mode}.json`)

export const profileOf = (mode: PrivilegedMode): SeccompProfile => readJson('seccomp', `${mode}.json`) as SeccompProfile

const code = (words: readonly string[], none: string): string =>
  words.length === 0 ? none : words.map((word) => `\`${word}\``).join(', ')

const identity = ({ uid, capabilities }: Identity): string =>
  `uid ${uid}, ${code(
    capabilities.map((name) => `CAP_${name}`),
    'none',
  )}`

/** The document docs/privileges.md. */
export function formatPrivilegeDocs(): string {
  const rows = privilegedModes.map((mode) => {
    const { legacyFlavour, writable, programs, ...usual } = privilegesOf(mode)
    const legacy = legacyFlavour === undefined ? '' : `; legacy flavour of iptables: ${identity(legacyFlavour)}`
    return `| ${mode} | ${identity(usual)}${legacy} | ${code(writable, 'none')} | ${code(programs, 'none')} |`
  })
  return [
    '# Privileges',
    '',
    'What the proxy needs in each mode, after `--init-only` has run once with full privileges. The kernel tier and the ipvs tier run all modes',
    'with exactly this: the user, no new privileges, these capabilities and no others, all mounts read-only but these paths,',
    'and a seccomp filter that kills the process at any other system call. Then the proxy does everything that it does on a node. `npm run docs`',
    'writes this document from [deploy/privileges.json](../deploy/privileges.json) and [deploy/seccomp](../deploy/seccomp); a test compares them.',
    '',
    '| mode | user and capabilities | writable paths | programs |',
    '| --- | --- | --- | --- |',
    ...rows,
    '',
    ...notes,
    '',
    '## System calls',
    '',
    'The profiles are in the format of the kubelet (`seccompProfile: { type: Localhost }`) and of OCI. *Recorded* is what the modes called, with',
    'Node 20 and as the single executable with Node 26, in the tests on x86-64. The others are allowed as well, since other versions of Node, the',
    'C library and the kernel use them in place of these, on arm64 too, where no test has run.',
    '',
    ...privilegedModes.flatMap((mode) => formatProfile(mode)),
  ].join('\n')
}

const notes = [
  '* **ipvs mode** needs `CAP_NET_RAW` with both flavours of iptables: its rules match sets (`-m set`), and for each set iptables opens a raw socket to',
  "  ask the kernel for its number. Without the capability, iptables-restore ends with `Can't open socket to ipset`, and no sync succeeds. The profile",
  '  is that of iptables mode, whose programs it runs; a record of all calls of ipvs mode had no others. It was run by Node 20 on Linux 6.1, in a VM.',
  '* **User.** Kubernetes gives capabilities only to root (it sets no ambient ones), so the manifests use uid 0 with all other capabilities dropped.',
  '  Where the service manager can do better, uid 65534 is enough. The legacy flavour needs root: the kernel names its tables in a file',
  '  (`/proc/net/ip_tables_names`) that only root may read. As another user, and as root without',
  '  `CAP_NET_RAW`, the proxy warns, and takes these tables for empty.',
  '* **Paths.** `/run/sluice` has the admin socket and may be left out: a warning says so. `/var/lib/sluice/proxy` keeps the last good state and',
  '  may be left out, too: then a node that boots without its API server has no rules. `/run/xtables.lock` must be the file of the node.',
  '* **Programs.** In nftables mode the profile forbids to start any process. It therefore does not suit a kubeconfig with an exec plugin,',
  '  nor a node on which the proxy shall remove rules that iptables mode has left: use the profile of iptables mode there.',
  '* **Sockets** of other families than Unix, IPv4, IPv6 and netlink are refused, and so are namespaces and io_uring.',
  '* The proxy looks up names, reads its kubeconfig, token and configuration, and `/proc` and `/sys`; it writes to none of them.',
]

function formatProfile(mode: PrivilegedMode): readonly string[] {
  const { syscalls } = profileOf(mode)
  const [recorded, others, ...special] = syscalls
  return [
    `### ${mode}`,
    '',
    `Recorded: ${recorded?.names.join(', ')}.`,
    '',
    `Others: ${others?.names.join(', ')}.`,
    '',
    `With conditions: ${[...new Set(special.flatMap(({ names, comment }) => (comment === undefined ? names : `${names} (${comment})`)))].join('; ')}.`,
    '',
  ]
}
