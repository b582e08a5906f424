import { describe, expect, it } from 'vitest'
import { nextTurn } from '../../src/lib/time.ts'
import { runAtOnce, runSliced, type Steps, TimeSlice, timeSliceMs } from '../../src/lib/yielding.ts'

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
  it('is done at once and without a promise while there is time', () => {
    const stint = new TimeSlice({ monotonic: () => 0 })
    expect(runSliced(count(1_000), stint)).toBe(1_000)
    expect(runAtOnce(count(3))).toBe(3)
  })

  it('rests when its time is used up, and has as much again after that', async () => {
    let [now, rests] = [0, 0]
    const stint = new TimeSlice({ monotonic: () => now++ }, async () => {
      rests++
    })
    expect(await runSliced(count(10 * timeSliceMs), stint)).toBe(10 * timeSliceMs)
    expect(rests).toBe(10)
  })

  it('may put things in order if it is given up in a rest', async () => {
    let [now, left] = [0, false]
    const stint = new TimeSlice({ monotonic: () => now++ }, () => Promise.reject(new Error('stopped')))
    const walk = count(100, (early) => {
      left = early
    })
    await expect(runSliced(walk, stint)).rejects.toThrow('stopped')
    expect(left).toBe(true)
  })
})

describe('nextTurn', () => {
  it('gives one of those who wait each turn of the event loop, in their order', async () => {
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
