import { readdirSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { runForLines } from '../../../src/sys/process/run-lines.ts'

const print = (text: string) => ['-e', `process.stdout.write(${JSON.stringify(text)}.repeat(20000))`]

describe('runForLines', () => {
  it('passes on everything in pieces of whole lines', async () => {
    const pieces: string[] = []
    await runForLines(process.execPath, print('one line of h\u00e4llo\n'), {}, (lines) => pieces.push(lines))
    expect(pieces.length).toBeGreaterThan(4)
    expect(pieces.every((piece) => piece.endsWith('\n'))).toBe(true)
    // The text has one character per byte.
    expect(Buffer.from(pieces.join(''), 'latin1').toString() === 'one line of h\u00e4llo\n'.repeat(20_000)).toBe(true)
  })

  it('handles a line that is longer than a piece, and a line without an end', async () => {
    const pieces: string[] = []
    await runForLines(process.execPath, print('endless '), {}, (lines) => pieces.push(lines))
    expect(pieces.join('')).toBe('endless '.repeat(20_000))
  })

  it('passes on nothing of a program that fails, and leaves no descriptor behind', async () => {
    const files = () => readdirSync('/proc/self/fd').length
    const before = files()
    const pieces: string[] = []
    const failing = runForLines('sh', ['-c', 'echo half; exit 3'], {}, (lines) => pieces.push(lines))
    await expect(failing).rejects.toMatchObject({ fields: { exitCode: 3 } })
    expect(pieces).toEqual([])
    expect(files()).toBe(before)
  })
})
