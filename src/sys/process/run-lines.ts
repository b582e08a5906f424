// Runs a program that prints very much, and hands out its lines in large pieces when it has ended.
//
// It prints into a file in memory. Through a pipe, a program that prints a few lines at a time wakes this process for each of them.

import { readSync } from 'node:fs'
import { nextTurn } from '../../lib/time.ts'
import type { RunOptions } from './exec.ts'
import { MemoryFile } from './memory-file.ts'
import { spawnProgram } from './spawn.ts'

const pieceBytes = 64 * 1024
/** Pieces after which everybody else gets a turn. */
const stride = 8
const newline = 0x0a

/** As `run`; `visit` gets whole lines, a character for each byte: that is cheap, and what is looked for is ASCII. */
export async function runForLines(
  program: string,
  args: readonly string[],
  options: Omit<RunOptions, 'stdin' | 'stdout'>,
  visit: (lines: string) => void,
): Promise<void> {
  const file = new MemoryFile(program)
  // Where there are none, a pipe does as well, only dearer.
  if (file.fd < 0) return visit(Buffer.from((await spawnProgram(program, args, options)).stdout).toString('latin1'))
  try {
    await spawnProgram(program, args, { ...options, stdout: file.fd })
    await readLines(file.fd, visit)
  } finally {
    file.close()
  }
}

async function readLines(file: number, visit: (lines: string) => void): Promise<void> {
  let piece = Buffer.allocUnsafe(pieceBytes)
  /** At its beginning: a line whose end is yet to come. */
  let kept = 0
  let position = 0
  for (let pieces = 1; ; pieces++) {
    const got = readSync(file, piece, kept, piece.length - kept, position)
    if (got === 0) break
    position += got
    const end = kept + got
    const whole = piece.lastIndexOf(newline, end - 1) + 1
    if (whole > 0) visit(piece.toString('latin1', 0, whole))
    // A line that is longer than the piece needs a larger one.
    const next = whole === 0 && end === piece.length ? Buffer.allocUnsafe(2 * piece.length) : piece
    piece.copy(next, 0, whole, end)
    piece = next
    kept = end - whole
    if (pieces % stride === 0) await nextTurn()
  }
  if (kept > 0) visit(piece.toString('latin1', 0, kept))
}
