import { beforeEach, describe, expect, it } from 'vitest'
import { BusyPoll } from '../../../src/backend/relay/busy-poll.ts'

describe('the vigil after something was relayed', () => {
  let nowMs: number
  let waiting: (() => void)[]
  let vigil: BusyPoll
  const awake = () => waiting.length > 0
  /** One turn of the event loop that takes so long. */
  const turn = (ms: number) => {
    nowMs += ms
    for (const resume of waiting.splice(0)) resume()
  }

  beforeEach(() => {
    nowMs = 1000
    waiting = []
    vigil = new BusyPoll({ nowMs: () => nowMs, nextTurn: (resume) => waiting.push(resume) })
  })

  it('lasts a moment, and then the process may sleep', () => {
    expect(awake()).toBe(false)
    vigil.noteRelayed(1)
    for (let i = 0; i < 9; i++) turn(0.01)
    expect(awake()).toBe(true)
    turn(0.02)
    expect(awake()).toBe(false)
  })

  it('is one for all that is relayed, and each makes it last from then on', () => {
    vigil.noteRelayed(1)
    turn(0.08)
    vigil.noteRelayed(1)
    expect(waiting).toHaveLength(1)
    turn(0.08)
    expect(awake()).toBe(true)
    turn(0.08)
    expect(awake()).toBe(false)
  })

  it('goes on for as long as answers come quickly', () => {
    for (let i = 0; i < 1000; i++) {
      vigil.noteRelayed(1)
      turn(0.05)
      expect(awake()).toBe(true)
    }
  })

  it('costs slow answers at most one moment in seventeen', () => {
    let vigils = 0
    for (let i = 0; i < 170; i++) {
      vigil.noteRelayed(1)
      if (awake()) vigils++
      turn(5)
    }
    expect(vigils).toBe(10)
  })

  it('is not held for parts of a stream', () => {
    vigil.noteRelayed(64 * 1024)
    expect(awake()).toBe(false)
  })
})
