import { describe, expect, it } from 'vitest'
import { SharedAnswer } from '../../../src/commands/dashboard/shared-answer.ts'

describe('an answer that all viewers share', () => {
  it('is read once for viewers who ask at the same time', async () => {
    let reads = 0
    const answer = new SharedAnswer(async () => ++reads, { leastMs: 60_000, restFactor: 1 })
    expect(await Promise.all([answer.get('a'), answer.get('a'), answer.get('b')])).toEqual([1, 1, 1])
  })

  it('is kept for its time, also if the revision is another', async () => {
    let reads = 0
    const answer = new SharedAnswer(async () => ++reads, { leastMs: 60_000, restFactor: 1 })
    expect(await answer.get('a')).toBe(1)
    expect(await answer.get('b')).toBe(1)
  })

  it('is read again after its time if the revision is another, and not otherwise', async () => {
    let reads = 0
    const answer = new SharedAnswer(async () => ++reads, { leastMs: 0, restFactor: 1 })
    expect(await answer.get('a')).toBe(1)
    expect(await answer.get('a')).toBe(1)
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect(await answer.get('b')).toBe(2)
  })

  it('is read again after a failure', async () => {
    let reads = 0
    const answer = new SharedAnswer(
      async () => {
        if (++reads === 1) throw new Error('no')
        return reads
      },
      { leastMs: 60_000, restFactor: 1 },
    )
    await expect(answer.get('a')).rejects.toThrow('no')
    expect(await answer.get('a')).toBe(2)
  })
})
