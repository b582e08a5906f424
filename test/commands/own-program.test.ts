import { chmodSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { ownCommand } from '../../src/commands/own-program.ts'
import { directory } from './run-command.ts'

function script(): string {
  const file = join(directory(), 'sluice')
  writeFileSync(file, '#!/bin/sh\n')
  chmodSync(file, 0o755)
  return file
}

describe('the command that a person types to start this program again', () => {
  it('is the name if the PATH leads to this program, else a path', () => {
    const file = script()
    const folder = directory()
    expect(ownCommand({ PATH: `/nowhere:${folder}` }, ['node', file])).toBe(file)
    symlinkSync(file, join(folder, 'sluice'))
    expect(ownCommand({ PATH: `/nowhere:${folder}` }, ['node', file])).toBe('sluice')
    // Another program of the same name comes first.
    expect(ownCommand({ PATH: `${join(script(), '..')}:${folder}` }, ['node', file])).toBe(file)
  })

  it('is short inside of the current directory', () => {
    expect(ownCommand({ PATH: '' }, ['node', join(process.cwd(), 'bin/sluice')])).toBe('bin/sluice')
  })

  it('is the whole command line for a file that cannot be executed itself', () => {
    const file = join(directory({ 'a b.ts': '' }), 'a b.ts')
    expect(ownCommand({ PATH: '' }, ['node', '--import', 'tsx', file])).toBe(`node --import tsx '${file}'`)
  })
})
