// Reads from /proc what processes cost: CPU in ms (counted by the kernel in ticks of 10 ms) and memory in MB.

import { readFileSync } from 'node:fs'

/** The fields of a stat file that follow the name of the process, which may contain blanks. */
const statFields = (path: string): readonly number[] =>
  readFileSync(path, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ')
    .map(Number)

const msOf = (ticks: number | undefined): number => (ticks ?? 0) * 10

/** User and system time of a process and of the children it has waited for. */
export function cpuMs(pid: number): number {
  return statFields(`/proc/${pid}/stat`)
    .slice(11, 15)
    .reduce((sum, ticks) => sum + msOf(ticks), 0)
}

/** User and system time of the children that this process has waited for. */
export function childrenCpuMs(): number {
  const fields = statFields('/proc/self/stat')
  return msOf(fields[13]) + msOf(fields[14])
}

/** User and system time of the calling thread, and the system time of it. */
export function threadCpuMs(): { readonly all: number; readonly system: number } {
  const fields = statFields('/proc/thread-self/stat')
  return { all: msOf(fields[11]) + msOf(fields[12]), system: msOf(fields[12]) }
}

/** User and system time of all threads of this process. */
export function ownCpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

export function rssMb(pid: number): number {
  return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024
}

/** Memory of the kernel of the whole machine; other programs show in it as noise. */
export function kernelMb(): number {
  const text = readFileSync('/proc/meminfo', 'utf8')
  const read = (name: string) => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(text)?.[1] ?? 0)
  return (read('Slab') + read('Percpu') + read('VmallocUsed')) / 1024
}

/** Waits until the process has used at most `idleMs` of CPU in each of three periods of 300 ms. */
export async function waitUntilIdle(pid: number, idleMs = 10): Promise<void> {
  for (let quiet = 0, last = cpuMs(pid), i = 0; quiet < 3 && i < 100; i++) {
    await new Promise((resolve) => setTimeout(resolve, 300))
    const now = cpuMs(pid)
    quiet = now - last <= idleMs ? quiet + 1 : 0
    last = now
  }
}
