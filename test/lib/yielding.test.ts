// Checks that long work runs in time slices, and that waiting tasks share the event loop.

import { describe, expect, it } from 'vitest'
import { nextTurn } from '../../src/lib/time.ts'
import { runSliced, type Steps, TimeSlice, timeSliceMs } from '../../src/lib/yielding.ts'

function* count(to: number, end: (left: boolean) => void = () => {}): Steps<number> {
  let done = false
  try {
    for (let i = 0; i < to; i++) yield
    done = true
    return to
  } finally {
    end(!done)
  }
}

describe('long work', () => {
  it('is done at once and without a promise if it fits in the time slice', () => {
    const slice = new TimeSlice({ monotonic: () => 0 })
    expect(runSliced(count(1_000), slice)).toBe(1_000)
  })

  it('pauses when its time slice is used up, and gets a new slice after that', async () => {
    let [now, pauses] = [0, 0]
    const slice = new TimeSlice({ monotonic: () => now++ }, async () => {
      pauses++
    })
    expect(await runSliced(count(10 * timeSliceMs), slice)).toBe(10 * timeSliceMs)
    expect(pauses).toBe(10)
  })

  it('runs its finally blocks if it is abandoned in a pause', async () => {
    let [now, left] = [0, false]
    const slice = new TimeSlice({ monotonic: () => now++ }, () => Promise.reject(new Error('stopped')))
    const steps = count(100, (early) => {
      left = early
    })
    await expect(runSliced(steps, slice)).rejects.toThrow('stopped')
    expect(left).toBe(true)
  })
})

describe('nextTurn', () => {
  it('resumes one waiting task per turn of the event loop, in order', async () => {
    const seen: string[] = []
    const worker = async (name: string) => {
      for (let i = 0; i < 3; i++) {
        await nextTurn()
        seen.push(name)
      }
    }
    let working = true
    const turn = () => {
      seen.push('-')
      if (working) setImmediate(turn)
    }
    setImmediate(turn)
    await Promise.all([worker('a'), worker('b')])
    working = false
    expect(seen.filter((name) => name !== '-').join('')).toBe('ababab')
    expect(seen.join('')).not.toMatch(/[ab][ab]/)
  })
})
