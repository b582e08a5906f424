// Measures a fixed amount of CPU work, so that figures of an emulated machine can be scaled. As a program it prints the result.

import * as libc from '../src/sys/libc.ts'

/** CPU time in ms of JavaScript alone, and of small system calls by the library that netlink uses. */
export interface Calibration {
  readonly script: number
  readonly calls: number
}

export function calibrate(): Calibration {
  const best = (work: () => void): number => {
    const times = [0, 1, 2].map(() => {
      const begun = process.cpuUsage()
      work()
      const { user, system } = process.cpuUsage(begun)
      return (user + system) / 1000
    })
    return Math.round(Math.min(...times))
  }
  return { script: best(script), calls: best(calls) }
}

/** Uses maps, strings and bytes as a sync does. */
function script(): void {
  const map = new Map<string, number>()
  for (let i = 0; i < 200_000; i++) {
    const key = `tcp 10.${i & 255}.${(i >> 8) & 255}.1:80`
    map.set(key, (map.get(key) ?? 0) + i)
  }
  const bytes = Buffer.alloc(1 << 20)
  for (let round = 0; round < 4; round++) for (let i = 0; i < bytes.length; i++) bytes[i] = (i * 31 + round) & 255
}

function calls(): void {
  const fd = libc.socket(16, 3, 16)
  const address = Buffer.alloc(12)
  for (let i = 0; i < 50_000; i++) libc.getsockname(fd, address)
  libc.close(fd)
}

if (import.meta.filename === process.argv[1]) process.stdout.write(JSON.stringify(calibrate()))
