// Reads a table as `iptables-save` prints it, without creating the table by reading it.

import type { Family } from '../../lib/ip.ts'
import { runProgram } from '../../sys/process/exec.ts'
import { listLegacyTables } from './flavour.ts'
import { type ProgramSet, programName } from './programs.ts'

/** Returns '' if this kernel does not have the table. */
export async function readSavedTable({ suffix, flavour }: ProgramSet, family: Family, table: string): Promise<string> {
  // The legacy programs create a table that is not there when they read it.
  if (flavour === 'legacy' && !listLegacyTables(family).includes(table)) return ''
  const options = { accept: [0, 1, 2, 3, 4], deadlineMs: 10 * 60_000 }
  return (await runProgram(`${programName(family)}${suffix}-save`, ['-t', table], options)).stdout
}
