// Runs a program that prints many lines, and passes them on in large pieces when the program has ended.
//
// The program prints into a file in memory. If it printed a few lines at a time into a pipe, each write would wake this process.

import { readSync } from 'node:fs'
import { nextTurn } from '../../lib/time.ts'
import type { RunOptions } from './exec.ts'
import { MemoryFile } from './memory-file.ts'
import { spawnProgram } from './spawn.ts'

const pieceBytes = 64 * 1024
/** After this many pieces the event loop may do other work. */
const piecesPerTurn = 8
const newline = 0x0a

/** `visit` gets whole lines with one character per byte: that is cheap, and callers look for ASCII. Throws an ExecError. */
export async function runForLines(
  program: string,
  args: readonly string[],
  options: Omit<RunOptions, 'stdin' | 'stdout'>,
  visit: (lines: string) => void,
): Promise<void> {
  const file = new MemoryFile(program)
  // Without files in memory, a pipe works too, but costs more.
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
  /** The length of the incomplete line at the beginning of the piece. */
  let rest = 0
  let position = 0
  for (let pieces = 1; ; pieces++) {
    const length = readSync(file, piece, rest, piece.length - rest, position)
    if (length === 0) break
    position += length
    const end = rest + length
    const whole = piece.lastIndexOf(newline, end - 1) + 1
    if (whole > 0) visit(piece.toString('latin1', 0, whole))
    // A line that is longer than the piece needs a larger piece.
    const next = whole === 0 && end === piece.length ? Buffer.allocUnsafe(2 * piece.length) : piece
    piece.copy(next, 0, whole, end)
    piece = next
    rest = end - whole
    if (pieces % piecesPerTurn === 0) await nextTurn()
  }
  if (rest > 0) visit(piece.toString('latin1', 0, rest))
}
