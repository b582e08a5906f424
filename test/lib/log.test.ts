// Checks log lines: klog's text format and JSON, verbosity per component, and values that must not break a line.

import { describe, expect, it } from 'vitest'
import { ProxyError } from '../../src/lib/errors.ts'
import { createLogger, type LogOptions, silentLogger } from '../../src/lib/log.ts'

const at = new Date(2024, 0, 2, 3, 4, 5, 67).getTime()

function recorder(options: Partial<LogOptions> = {}) {
  const lines: string[] = []
  const log = createLogger({
    format: 'text',
    verbosity: 0,
    write: (line) => lines.push(line),
    now: () => at,
    ...options,
  })
  return { log, lines, json: () => lines.map((line) => JSON.parse(line) as Record<string, unknown>) }
}

describe('text', () => {
  it("has klog's header, the quoted message and key=value pairs", () => {
    const { log, lines } = recorder()
    log.info('Synced rules', { family: 'IPv4', services: 3, full: true, nothing: undefined })
    const pid = String(process.pid).padStart(7)
    expect(lines).toEqual([
      `I0102 03:04:05.067000 ${pid} proxy] "Synced rules" family="IPv4" services=3 full=true nothing=undefined\n`,
    ])
  })

  it('has a letter per severity and the name of the component', () => {
    const { log, lines } = recorder()
    log.named('lane').warn('w')
    log.named('lane').error('e')
    expect(lines.map((line) => [line[0], line.split('] ')[0]?.split(' ').at(-1)])).toEqual([
      ['W', 'lane'],
      ['E', 'lane'],
    ])
  })

  it('writes one line per message', () => {
    const { log, lines } = recorder()
    log.info('two\nlines', { text: 'a\nb' })
    expect(lines[0]?.trimEnd().split('\n')).toHaveLength(1)
  })

  it('prints errors with their causes', () => {
    const { log, lines } = recorder()
    log.error('Failed', { error: new ProxyError('config', 'outer', { cause: new Error('inner') }) })
    expect(lines[0]).toContain('error="outer: inner"')
  })
})

describe('json', () => {
  it('has time, caller, message, verbosity and fields', () => {
    const { log, json } = recorder({ format: 'json', verbosity: 4 })
    log.info('a', { count: 1 })
    log.v(4, 'b')
    log.warn('c')
    log.error('d', { error: new Error('boom') })
    expect(json()).toEqual([
      { ts: at, caller: 'proxy', msg: 'a', v: 0, count: 1 },
      { ts: at, caller: 'proxy', msg: 'b', v: 4 },
      { ts: at, caller: 'proxy', msg: 'c', level: 'warning' },
      { ts: at, caller: 'proxy', msg: 'd', err: 'boom' },
    ])
  })

  it('does not let a field overwrite the line itself', () => {
    const { log, json } = recorder({ format: 'json' })
    log.info('true message', { msg: 'forged', ts: 0 })
    expect(json()[0]).toMatchObject({ msg: 'true message', ts: at, field_msg: 'forged' })
  })
})

describe.each(['text', 'json'] as const)('values that JSON cannot hold, as %s', (format) => {
  it('do not throw', () => {
    const { log, lines } = recorder({ format })
    const ring: { self?: unknown } = {}
    ring.self = ring
    log.info('odd', { big: 12n, ring, map: new Map([['a', 1]]), set: new Set(['b']), nested: [new Error('deep')] })
    expect(lines).toHaveLength(1)
    for (const part of ['12', 'a', 'b', 'deep']) expect(lines[0]).toContain(part)
  })

  it('distinguish a cycle from a value that occurs twice', () => {
    const { log, lines } = recorder({ format })
    const shared = { name: 'twice' }
    log.info('odd', { both: { first: shared, second: shared } })
    expect(lines[0]?.match(/twice/g)).toHaveLength(2)
  })

  it('may contain an error that is its own cause', () => {
    const { log, lines } = recorder({ format })
    const error = new Error('loop')
    error.cause = error
    log.error('odd', { error })
    expect(lines[0]).toContain('loop')
  })
})

describe('verbosity', () => {
  it('hides lines above it, and can be changed later, also for named logs', () => {
    const { log, lines } = recorder({ verbosity: 2 })
    const named = log.named('store')
    log.v(2, 'shown')
    log.v(3, 'hidden')
    expect(named.enabled(3)).toBe(false)
    log.setVerbosity(3)
    expect([log.enabled(3), named.enabled(3)]).toEqual([true, true])
    named.v(3, 'shown too')
    expect(lines).toHaveLength(2)
  })

  it('vmodule raises it for components that match, and never lowers it', () => {
    const vmodule = [
      { filePattern: 'lane*', verbosity: 5 },
      { filePattern: 'store.go', verbosity: 4 },
      { filePattern: 'pac?r', verbosity: 1 },
    ]
    const { log } = recorder({ verbosity: 2, vmodule })
    const highest = (name: string) => [1, 2, 3, 4, 5, 6].filter((level) => log.named(name).enabled(level)).at(-1)
    expect(['lane', 'lanes', 'store', 'restore', 'pacer', 'pacr'].map(highest)).toEqual([5, 5, 4, 2, 2, 2])
  })

  it('the silent log writes nothing', () => {
    expect(silentLogger.enabled(0)).toBe(false)
    expect(silentLogger.named('x')).toBe(silentLogger)
  })
})
