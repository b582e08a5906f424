import { describe, expect, it } from 'vitest'
import { runProgram } from '../../../src/sys/process/exec.ts'

describe('runProgram', () => {
  it('writes stdin and returns what the program prints', async () => {
    expect(await runProgram('sh', ['-c', 'cat; echo warned >&2'], { stdin: 'hällo' })).toEqual({
      code: 0,
      stdout: 'hällo',
      stderr: 'warned\n',
    })
  })

  it('writes stdin in many large pieces', async () => {
    const pieces = Array.from({ length: 2000 }, (_, i) => Buffer.alloc(1000, String(i % 10)))
    const { stdout } = await runProgram('cat', [], { stdin: pieces })
    expect(stdout === Buffer.concat(pieces).toString()).toBe(true)
  })

  it('fails with the exit code and what the program printed', async () => {
    await expect(runProgram('sh', ['-c', 'echo no such chain >&2; exit 4'])).rejects.toMatchObject({
      code: 'exec',
      message: 'sh ended with exit code 4: no such chain',
      fields: { program: 'sh', exitCode: 4, stderr: 'no such chain' },
    })
  })

  it('returns accepted exit codes', async () => {
    expect((await runProgram('sh', ['-c', 'exit 1'], { accept: [0, 1] })).code).toBe(1)
  })

  it('reports that a program is not installed', async () => {
    await expect(runProgram('sluice-no-such-program', [])).rejects.toMatchObject({
      message: 'sluice-no-such-program is not installed (not found in the folders of the system)',
    })
  })

  it('kills a program that takes too long', async () => {
    await expect(runProgram('sleep', ['60'], { deadlineMs: 50 })).rejects.toMatchObject({
      message: 'sleep did not end within 50 ms and was killed',
    })
  })

  it('ends when the abort signal fires, before or during the run', async () => {
    const stop = new AbortController()
    const running = runProgram('sleep', ['60'], { signal: stop.signal })
    stop.abort(new Error('shutdown'))
    await expect(running).rejects.toThrow('shutdown')
    await expect(runProgram('sleep', ['60'], { signal: stop.signal })).rejects.toThrow('shutdown')
  })

  it('survives a program that does not read its input', async () => {
    expect((await runProgram('true', [], { stdin: 'x'.repeat(1 << 20) })).code).toBe(0)
  })
})
