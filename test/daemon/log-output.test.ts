import { Writable } from 'node:stream'
import { describe, expect, it } from 'vitest'
import { LogOutput, type LogStream } from '../../src/daemon/log-output.ts'

/** A stream that fails, throws or does not read, as the test says. */
class FakeStream implements LogStream {
  writableLength = 0
  failure: Error | undefined
  throws = false
  readonly lines: string[] = []

  write(text: string, done: (error?: Error | null) => void): void {
    if (this.failure !== undefined && this.throws) throw this.failure
    if (this.failure === undefined) this.lines.push(text)
    done(this.failure)
  }

  on(): void {}
}

function open(): { stream: FakeStream; output: LogOutput } {
  const stream = new FakeStream()
  const output = new LogOutput(stream)
  output.onRecovery = (lines, reason) => output.write(`lost ${lines}: ${reason}`)
  return { stream, output }
}

const failWith = (code: string): Error => Object.assign(new Error(`write ${code}`), { code })

describe('LogOutput', () => {
  it.each([
    ['EPIPE', false],
    ['ENOSPC', true],
  ])('goes on after %s, and says how many lines were lost', (code, throws) => {
    const { stream, output } = open()
    output.write('one')
    stream.throws = throws
    stream.failure = failWith(code)
    output.write('two')
    output.write('three')
    stream.failure = undefined
    output.write('four')
    expect(stream.lines).toEqual(['one', 'four', `lost 2: ${code}`])
  })

  it('does not end the process when the stream reports an error', async () => {
    const stream = new Writable({ write: (_chunk, _encoding, done) => done(failWith('EPIPE')) })
    const output = new LogOutput(stream)
    output.write('one')
    // Without a listener, the error would be thrown.
    await new Promise((resolve) => stream.once('close', resolve))
    expect(stream.errored).toMatchObject({ code: 'EPIPE' })
    expect(stream.listenerCount('error')).toBe(1)
  })

  it('queues a bounded amount for a reader that does not read', () => {
    const { stream, output } = open()
    stream.writableLength = 2 << 20
    output.write('one')
    stream.writableLength = 0
    output.write('two')
    expect(stream.lines).toEqual(['two', 'lost 1: the reader of the log does not read'])
  })

  it('counts the lines again that a lost report named', () => {
    const { stream, output } = open()
    stream.failure = failWith('EPIPE')
    output.write('one')
    stream.failure = undefined
    output.onRecovery = (lines, reason) => {
      stream.failure = failWith('EPIPE')
      output.write(`lost ${lines}: ${reason}`)
    }
    output.write('two')
    output.onRecovery = (lines, reason) => output.write(`lost ${lines}: ${reason}`)
    stream.failure = undefined
    output.write('three')
    expect(stream.lines).toEqual(['two', 'three', 'lost 1: EPIPE'])
  })
})
