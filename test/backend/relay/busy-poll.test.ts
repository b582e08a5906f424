// How long the relay polls after a message, and when it does not poll at all.

import { beforeEach, describe, expect, it } from 'vitest'
import { BusyPoll } from '../../../src/backend/relay/busy-poll.ts'

describe('busy polling after a relayed message', () => {
  let nowMs: number
  let waiting: (() => void)[]
  let busyPoll: BusyPoll
  const isPolling = () => waiting.length > 0
  /** Runs one turn of the event loop that takes this long. */
  const turn = (ms: number) => {
    nowMs += ms
    for (const resume of waiting.splice(0)) resume()
  }

  beforeEach(() => {
    nowMs = 1000
    waiting = []
    busyPoll = new BusyPoll({ nowMs: () => nowMs, nextTurn: (resume) => waiting.push(resume) })
  })

  it('ends after a tenth of a millisecond, and then the process may sleep', () => {
    expect(isPolling()).toBe(false)
    busyPoll.noteRelayed(1)
    for (let i = 0; i < 9; i++) turn(0.01)
    expect(isPolling()).toBe(true)
    turn(0.02)
    expect(isPolling()).toBe(false)
  })

  it('is shared by all messages, and each message extends it', () => {
    busyPoll.noteRelayed(1)
    turn(0.08)
    busyPoll.noteRelayed(1)
    expect(waiting).toHaveLength(1)
    turn(0.08)
    expect(isPolling()).toBe(true)
    turn(0.08)
    expect(isPolling()).toBe(false)
  })

  it('continues for as long as answers come quickly', () => {
    for (let i = 0; i < 1000; i++) {
      busyPoll.noteRelayed(1)
      turn(0.05)
      expect(isPolling()).toBe(true)
    }
  })

  it('happens for at most one in seventeen messages when answers are slow', () => {
    let polls = 0
    for (let i = 0; i < 170; i++) {
      busyPoll.noteRelayed(1)
      if (isPolling()) polls++
      turn(5)
    }
    expect(polls).toBe(10)
  })

  it('does not happen for parts of a stream', () => {
    busyPoll.noteRelayed(64 * 1024)
    expect(isPolling()).toBe(false)
  })
})
