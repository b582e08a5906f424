// Reads how much CPU time this process and the programs that it ran have used.

import { readChildrenTime } from '../libc.ts'

/** False where the C library has no such call, as on Windows. */
let hasChildrenTime = true

/** In milliseconds. Programs count from their end on. Every sync reads it, and reading /proc/self/stat instead takes 20 times as long. */
export function readCpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000 + readProgramsMs()
}

function readProgramsMs(): number {
  if (!hasChildrenTime) return 0
  try {
    return readChildrenTime() / 1000
  } catch {
    hasChildrenTime = false
    return 0
  }
}
