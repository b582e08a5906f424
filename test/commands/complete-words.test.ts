import { describe, expect, it } from 'vitest'
import { sluice } from './run-command.ts'

const complete = async (...words: readonly string[]) =>
  (await sluice('__complete', '--', ...words)).stdout.split('\n').slice(0, -1)

describe('completion for kubectl', () => {
  it('offers commands, flags, values and files', async () => {
    expect(await complete('n')).toEqual(['nodes', ':4'])
    expect(await complete('nodes', '--c')).toEqual(['--context', ':4'])
    expect(await complete('nodes', '-o', 'j')).toEqual(['json', ':4'])
    expect(await complete('nodes', '--output=y')).toEqual(['--output=yaml', ':4'])
    expect(await complete('nodes', '--kubeconfig', '')).toEqual([':0'])
  })

  it('offers every visible command first, and nothing for an unknown command', async () => {
    expect(await complete('')).toEqual(expect.arrayContaining(['status', 'explain', 'top', 'nodes', 'version', ':4']))
    expect(await complete('')).not.toContain('connect')
    expect(await complete('unknown', '')).toEqual([':4'])
  })
})
