import { describe, expect, it } from 'vitest'
import { Closers } from '../../src/lib/closers.ts'

describe('a stack of closers', () => {
  it('closes in reverse order, each after the one before has ended', async () => {
    const closers = new Closers()
    const closed: string[] = []
    closers.push(() => closed.push('first'))
    closers.push(async () => {
      await new Promise((resolve) => setTimeout(resolve, 10))
      closed.push('second')
    })
    closers.push(() => closed.push('third'))
    await closers.closeAll()
    expect(closed).toEqual(['third', 'second', 'first'])
  })

  it('runs every closer although some fail, and throws the first failure', async () => {
    const closers = new Closers()
    let isClosed = false
    closers.push(() => {
      isClosed = true
    })
    closers.push(() => Promise.reject(new Error('second failure')))
    closers.push(() => {
      throw new Error('first failure')
    })
    await expect(closers.closeAll()).rejects.toThrow('first failure')
    expect(isClosed).toBe(true)
  })

  it('closes nothing twice', async () => {
    const closers = new Closers()
    let times = 0
    closers.push(() => times++)
    await closers.closeAll()
    await closers.closeAll()
    expect(times).toBe(1)
  })
})
