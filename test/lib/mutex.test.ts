import { describe, expect, it } from 'vitest'
import { Mutex } from '../../src/lib/mutex.ts'

/** Operations that end when they are told to, and the order in which they began. */
function operations(turns: Mutex) {
  const begun: string[] = []
  const ends = new Map<string, { resolve: (value: string) => void; reject: (error: Error) => void }>()
  const take = (name: string) =>
    turns.run(() => {
      begun.push(name)
      return new Promise<string>((resolve, reject) => ends.set(name, { resolve, reject }))
    })
  return { begun, take, end: (name: string) => ends.get(name)?.resolve(name), ends }
}

describe('turns', () => {
  it('the first begins before the caller goes on', () => {
    const { begun, take } = operations(new Mutex())
    void take('a')
    expect(begun).toEqual(['a'])
  })

  it('others wait for those before them, in the order of asking', async () => {
    const turns = new Mutex()
    const { begun, take, end } = operations(turns)
    const [a, b, c] = [take('a'), take('b'), take('c')]
    expect(turns.open).toBe(3)
    expect(begun).toEqual(['a'])
    end('a')
    expect(await a).toBe('a')
    await Promise.resolve()
    expect(begun).toEqual(['a', 'b'])
    end('b')
    await b
    await Promise.resolve()
    expect(begun).toEqual(['a', 'b', 'c'])
    end('c')
    await c
    await Promise.resolve()
    expect(turns.open).toBe(0)
  })

  it('one asked for the moment its predecessor has ended still comes after those that wait', async () => {
    const turns = new Mutex()
    const { begun, take, end } = operations(turns)
    const a = take('a')
    const b = take('b')
    const c = a.then(() => take('c'))
    end('a')
    await a
    while (!begun.includes('b')) await Promise.resolve()
    end('b')
    await b
    while (!begun.includes('c')) await Promise.resolve()
    expect(begun).toEqual(['a', 'b', 'c'])
    end('c')
    await c
  })

  it('a failure is told to whoever asked, and the next has its turn', async () => {
    const turns = new Mutex()
    const { take, ends, end, begun } = operations(turns)
    const [a, b] = [take('a'), take('b')]
    ends.get('a')?.reject(new Error('no'))
    await expect(a).rejects.toThrow('no')
    while (!begun.includes('b')) await Promise.resolve()
    end('b')
    expect(await b).toBe('b')
  })

  it('one that throws instead of rejecting ends its turn too', async () => {
    const turns = new Mutex()
    const failed = turns.run(() => {
      throw new Error('at once')
    })
    await expect(failed).rejects.toThrow('at once')
    await Promise.resolve()
    expect(turns.open).toBe(0)
    expect(await turns.run(async () => 1)).toBe(1)
  })

  it('one that asks for another while it begins does not run beside it', async () => {
    const turns = new Mutex()
    const seen: string[] = []
    let inner: Promise<void> | undefined
    const outer = turns.run(async () => {
      inner = turns.run(async () => void seen.push('inner'))
      await Promise.resolve()
      seen.push('outer')
    })
    await outer
    await inner
    expect(seen).toEqual(['outer', 'inner'])
  })
})
