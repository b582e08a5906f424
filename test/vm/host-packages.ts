// Installs the Debian packages that the VM needs on the host.

import { spawnSync } from 'node:child_process'

/** The emulator and the programs that unpack kernels; then the tools with which tests check the kernel's state in the VM. */
const packages = [
  ...['qemu-system-x86', 'busybox-static', 'lz4', 'zstd', 'xz-utils'],
  ...['ipvsadm', 'ipset', 'iptables', 'nftables', 'iproute2', 'conntrack', 'kmod'],
]

/** Installs missing packages. Returns the reason if that is impossible, else undefined. */
export function providePackages(): string | undefined {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    return `the VM runs amd64 kernels on Linux, this is ${process.platform} on ${process.arch}`
  }
  if (process.getuid?.() !== 0) return 'it needs root, to install packages and to share files with the VM'
  if (capture('dpkg-query', ['--version']) === undefined)
    return 'this system is not Debian: qemu and kernels come from its packages'
  const missing = missingPackages()
  if (missing.length === 0) return undefined
  process.stderr.write(`vm: installing ${missing.join(' ')}\n`)
  const install = () => spawnSync('apt-get', ['install', '-qq', '-y', '--no-install-recommends', ...missing], quiet)
  let done = install()
  if (done.status !== 0) {
    spawnSync('apt-get', ['update', '-qq'], quiet)
    done = install()
  }
  return done.status === 0 ? undefined : `apt-get install ${missing.join(' ')}: ${lastLine(done.stderr)}`
}

function missingPackages(): readonly string[] {
  const listed = spawnSync('dpkg-query', ['-W', '-f', `\${Package} \${db:Status-Status}\n`, ...packages], quiet)
  const installed = new Set(listed.stdout.split('\n').map((line) => line.replace(/ installed$/, '')))
  return packages.filter((name) => !installed.has(name))
}

const quiet = { encoding: 'utf8', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } } as const

/** Returns the standard output of a program; undefined if the program fails. */
export function capture(program: string, args: readonly string[]): string | undefined {
  const { status, stdout } = spawnSync(program, args, { encoding: 'utf8', maxBuffer: 1 << 26 })
  return status === 0 ? stdout : undefined
}

export const lastLine = (text: string): string => text.trim().split('\n').at(-1) ?? ''
