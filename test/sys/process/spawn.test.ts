import { readdirSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { MemoryFile } from '../../../src/sys/process/memory-file.ts'
import { spawnProgram } from '../../../src/sys/process/spawn.ts'

const files = () => readdirSync('/proc/self/fd').length

describe('spawnProgram', () => {
  it('writes stdin and returns what the program prints', async () => {
    expect(await spawnProgram('sh', ['-c', 'cat; echo warned >&2'], { stdin: 'hällo' })).toEqual({
      code: 0,
      stdout: 'hällo',
      stderr: 'warned\n',
    })
    expect(await spawnProgram('cat', [])).toMatchObject({ code: 0, stdout: '' })
  })

  it('passes the same file to several programs, each from the beginning', async () => {
    const file = new MemoryFile('input')
    const text = 'one line\n'.repeat(100_000)
    file.append(Buffer.from(text.slice(0, 70_000)))
    file.append(Buffer.from(text.slice(70_000)))
    for (let i = 0; i < 2; i++) expect((await spawnProgram('cat', [], { stdin: file })).stdout === text).toBe(true)
    expect(String(file) === text).toBe(true)
    file.close()
  })

  it('fails with the exit code and what the program printed', async () => {
    await expect(spawnProgram('sh', ['-c', 'echo no such chain >&2; exit 4'])).rejects.toMatchObject({
      code: 'exec',
      message: 'sh ended with exit code 4: no such chain',
      fields: { program: 'sh', exitCode: 4, stderr: 'no such chain' },
    })
    await expect(spawnProgram('sh', ['-c', 'kill -TERM $$'])).rejects.toMatchObject({
      message: 'sh was killed by SIGTERM',
      fields: { signal: 'SIGTERM' },
    })
  })

  it('returns accepted exit codes', async () => {
    expect((await spawnProgram('sh', ['-c', 'exit 1'], { accept: [0, 1] })).code).toBe(1)
  })

  it('reports that a program is not installed or cannot be started', async () => {
    await expect(spawnProgram('sluice-no-such-program', [])).rejects.toMatchObject({
      message: 'sluice-no-such-program is not installed (not found in the folders of the system)',
    })
    await expect(spawnProgram('/no/such/program', [])).rejects.toThrow('is not installed')
    await expect(spawnProgram('/proc/self/status', [])).rejects.toThrow('cannot be started')
  })

  it('gives programs the environment that the caller names, and does not look for programs in its PATH', async () => {
    const env = { PATH: '/proc', GREETING: 'hello' }
    expect((await spawnProgram('sh', ['-c', 'echo $GREETING'], { env })).stdout).toBe('hello\n')
  })

  it('does not make programs ignore broken pipes', async () => {
    const { stdout } = await spawnProgram('sh', ['-c', 'grep SigIgn /proc/self/status'])
    expect(Number.parseInt(stdout.split('\t')[1] as string, 16) & (1 << 12)).toBe(0)
  })

  it('kills a program that takes too long', async () => {
    await expect(spawnProgram('sleep', ['60'], { deadlineMs: 50 })).rejects.toMatchObject({
      message: 'sleep did not end within 50 ms and was killed',
    })
  })

  it('ends when the abort signal fires, before or during the run', async () => {
    const stop = new AbortController()
    const running = spawnProgram('sleep', ['60'], { signal: stop.signal })
    stop.abort(new Error('shutdown'))
    await expect(running).rejects.toThrow('shutdown')
    await expect(spawnProgram('sleep', ['60'], { signal: stop.signal })).rejects.toThrow('shutdown')
  })

  it('runs many programs at a time, and leaves no descriptor and no process behind', async () => {
    await spawnProgram('true', [])
    const before = files()
    const codes = await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        spawnProgram('sh', ['-c', `exit ${i}`], { accept: [i] }).then(({ code }) => code),
      ),
    )
    expect(codes).toEqual(Array.from({ length: 20 }, (_, i) => i))
    await expect(spawnProgram('false', [])).rejects.toThrow('exit code 1')
    await expect(spawnProgram('sluice-no-such-program', [])).rejects.toThrow()
    expect(files()).toBe(before)
  })
})
