// Checks that the CPU time of this process and of programs that it ran is counted.

import { execFileSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { readCpuMs } from '../../../src/sys/process/cpu-time.ts'

const ownMs = (): number => {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

describe('readCpuMs', () => {
  it('counts the time of this process', () => {
    const before = { all: readCpuMs(), own: ownMs() }
    let sum = 0
    while (ownMs() - before.own < 30) sum += Math.sqrt(sum + 1)
    expect(readCpuMs() - before.all).toBeGreaterThanOrEqual(30)
  })

  it.runIf(process.platform === 'linux')('counts the time of programs that have ended', () => {
    const before = readCpuMs() - ownMs()
    execFileSync(process.execPath, ['-e', 'while (process.cpuUsage().user < 150_000);'])
    expect(readCpuMs() - ownMs() - before).toBeGreaterThan(100)
  })
})
