// Reads how much CPU time this process and the programs that it ran have used.

import { readFileSync } from 'node:fs'

/** In milliseconds. Programs count from their end on, in steps of 10 ms, where /proc has their time. */
export function readCpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000 + readProgramsMs()
}

function readProgramsMs(): number {
  try {
    // The name of the process, in parentheses, may contain blanks.
    const [, rest = ''] = readFileSync('/proc/self/stat', 'latin1').split(/\) (?!.*\) )/s)
    const fields = rest.split(' ')
    return (Number(fields[13]) + Number(fields[14])) * msPerTick
  } catch {
    return 0
  }
}

/** Linux shows every process a hundred ticks per second. */
const msPerTick = 10
