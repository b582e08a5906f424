// Checks that a mutex runs one operation at a time, in order.

import { describe, expect, it } from 'vitest'
import { Mutex } from '../../src/lib/mutex.ts'

/** Operations that end when the test says so, and the order in which they started. */
function operations(mutex: Mutex) {
  const started: string[] = []
  const ends = new Map<string, { resolve: (value: string) => void; reject: (error: Error) => void }>()
  const start = (name: string) =>
    mutex.run(() => {
      started.push(name)
      return new Promise<string>((resolve, reject) => ends.set(name, { resolve, reject }))
    })
  return { started, start, end: (name: string) => ends.get(name)?.resolve(name), ends }
}

describe('Mutex', () => {
  it('starts the first operation before `run` returns', () => {
    const { started, start } = operations(new Mutex())
    void start('a')
    expect(started).toEqual(['a'])
  })

  it('runs later operations in the order of the calls', async () => {
    const mutex = new Mutex()
    const { started, start, end } = operations(mutex)
    const [a, b, c] = [start('a'), start('b'), start('c')]
    expect(mutex.open).toBe(3)
    expect(started).toEqual(['a'])
    end('a')
    expect(await a).toBe('a')
    await Promise.resolve()
    expect(started).toEqual(['a', 'b'])
    end('b')
    await b
    await Promise.resolve()
    expect(started).toEqual(['a', 'b', 'c'])
    end('c')
    await c
    await Promise.resolve()
    expect(mutex.open).toBe(0)
  })

  it('an operation that is queued when another ends still runs after those that wait', async () => {
    const mutex = new Mutex()
    const { started, start, end } = operations(mutex)
    const a = start('a')
    const b = start('b')
    const c = a.then(() => start('c'))
    end('a')
    await a
    while (!started.includes('b')) await Promise.resolve()
    end('b')
    await b
    while (!started.includes('c')) await Promise.resolve()
    expect(started).toEqual(['a', 'b', 'c'])
    end('c')
    await c
  })

  it('a failure rejects the call, and the next operation runs', async () => {
    const mutex = new Mutex()
    const { start, ends, end, started } = operations(mutex)
    const [a, b] = [start('a'), start('b')]
    ends.get('a')?.reject(new Error('no'))
    await expect(a).rejects.toThrow('no')
    while (!started.includes('b')) await Promise.resolve()
    end('b')
    expect(await b).toBe('b')
  })

  it('an operation that throws instead of rejecting releases the mutex, too', async () => {
    const mutex = new Mutex()
    const failed = mutex.run(() => {
      throw new Error('at once')
    })
    await expect(failed).rejects.toThrow('at once')
    await Promise.resolve()
    expect(mutex.open).toBe(0)
    expect(await mutex.run(async () => 1)).toBe(1)
  })

  it('an operation that queues another while it starts does not run beside it', async () => {
    const mutex = new Mutex()
    const seen: string[] = []
    let inner: Promise<void> | undefined
    const outer = mutex.run(async () => {
      inner = mutex.run(async () => void seen.push('inner'))
      await Promise.resolve()
      seen.push('outer')
    })
    await outer
    await inner
    expect(seen).toEqual(['outer', 'inner'])
  })
})
