// Checks what watches cost when their clients do not read: one budget for all buffers, and slow watches end first.

import { connect, type TLSSocket } from 'node:tls'
import { describe, expect, it } from 'vitest'
import { parseWatchQuery } from '../../../src/apiserver/requests/list-options.ts'
import { runWatch } from '../../../src/apiserver/requests/watch.ts'
import { type BudgetedWatch, WatchBudget } from '../../../src/apiserver/requests/watch-budget.ts'
import type { WatchSink } from '../../../src/apiserver/requests/watch-queue.ts'
import { getResource } from '../../../src/apiserver/schema/served-resources.ts'
import { Registry } from '../../../src/apiserver/store/registry.ts'
import { createMemoryLog } from '../../../src/apiserver/store/write-ahead-log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import { until } from '../../support/until.ts'
import { ask, post, service, services, start } from '../test-server.ts'

/** The client of a watch: reads at once, or never. */
class FakeClient implements WatchSink {
  buffered = 0
  received = 0
  isOver = false
  readonly #reads: boolean

  constructor(reads: boolean) {
    this.#reads = reads
  }

  write(text: string): boolean {
    if (this.#reads) this.received += text.length
    else this.buffered += text.length
    return this.#reads
  }

  drained(): Promise<void> {
    return this.#reads ? Promise.resolve() : new Promise(() => {})
  }
}

function setUp(maxBytes: number) {
  const registry = new Registry({ writeAheadLog: createMemoryLog() })
  const budget = new WatchBudget(maxBytes)
  const stop = new AbortController()
  const watch = (client: FakeClient, parameters = 'watch=1') => {
    const options = {
      registry,
      budget,
      clock: systemClock,
      resource: 'services',
      namespace: undefined,
      query: parseWatchQuery(getResource('services'), new URLSearchParams(parameters)),
      renderer: {
        id: 'same',
        formatEvent: (_: unknown, object: unknown, json: string | undefined) => json ?? JSON.stringify(object),
        formatBookmark: (metadata: unknown) => JSON.stringify({ metadata }),
        formatError: (status: unknown) => JSON.stringify(status),
      },
      timeoutMs: 60_000,
    }
    void runWatch(options, client, stop.signal).finally(() => {
      client.isOver = true
    })
    return client
  }
  const put = async (name: string, size: number) => {
    registry.put('services', { metadata: { namespace: 'default', name, annotations: { a: 'x'.repeat(size) } } })
    await registry.settled()
    await new Promise(setImmediate)
  }
  return { registry, watch, put, close: () => stop.abort() }
}

describe('clients that do not read', () => {
  it('share one budget, and lose their watches when it is used up', async () => {
    const { watch, put, close } = setUp(1 << 20)
    const reader = watch(new FakeClient(true))
    const sleepers = Array.from({ length: 50 }, () => watch(new FakeClient(false)))
    await put('first', 1_000)
    expect(sleepers.every(({ isOver }) => !isOver)).toBe(true)
    for (let i = 0; i < 20; i++) {
      await put(`s${i}`, 20_000)
      const used = sleepers.filter(({ isOver }) => !isOver).reduce((sum, { buffered }) => sum + buffered, 0)
      expect(used).toBeLessThanOrEqual(1 << 20)
    }
    expect(sleepers.some(({ isOver }) => isOver)).toBe(true)
    expect([reader.isOver, reader.received > 400_000]).toEqual([false, true])
    close()
  })

  it('use at most twice the budget while one change goes to all of them', async () => {
    const { watch, put, close } = setUp(1 << 20)
    const sleepers = Array.from({ length: 200 }, () => watch(new FakeClient(false)))
    await put('large', 100_000)
    const written = sleepers.reduce((sum, { buffered }) => sum + buffered, 0)
    expect(written).toBeLessThanOrEqual(2 << 20)
    close()
  })

  it('cannot keep changes in memory by not reading the initial objects', async () => {
    const { watch, put, close } = setUp(1 << 20)
    await put('first', 1_000)
    const sleeper = watch(new FakeClient(false), 'watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan')
    await put('a', 1_000)
    expect(sleeper.isOver).toBe(false)
    for (let i = 0; i < 15; i++) await put(`s${i}`, 100_000)
    await until('the watch is over', () => sleeper.isOver)
    expect(sleeper.buffered).toBeLessThan(10_000)
    close()
  })
})

describe('the budget', () => {
  it('ends the slowest watch first', () => {
    const budget = new WatchBudget(1_000)
    const ended: string[] = []
    const add = (name: string, buffered: number) => {
      const watch: BudgetedWatch = { buffered, endAsTooSlow: () => ended.push(name) }
      budget.add(watch)
    }
    add('fast', 10)
    add('slow', 300)
    add('slowest', 600)
    expect(budget.hasRoomFor(200)).toBe(true)
    expect(ended).toEqual([])
    expect(budget.hasRoomFor(900)).toBe(true)
    expect(ended).toEqual(['slowest', 'slow', 'fast'])
  })
})

describe('the history of changes', () => {
  it('is limited in bytes as well', async () => {
    const registry = new Registry({
      writeAheadLog: createMemoryLog(),
      historyLimits: { changes: 10_000, size: 100_000 },
    })
    const from = registry.version
    for (let i = 0; i < 50; i++) {
      registry.put('services', {
        metadata: { namespace: 'default', name: 'a', annotations: { a: `${i}${'x'.repeat(10_000)}` } },
      })
    }
    await registry.settled()
    expect(registry.changesSince('services', from)).toBeUndefined()
    expect(registry.changesSince('services', registry.version - 5)).toHaveLength(5)
  })
})

describe('real sockets', () => {
  it('150 watches that read nothing, 40 changes of 200 KB: the memory stays bounded', {
    timeout: 120_000,
  }, async () => {
    const server = await start()
    const sockets: TLSSocket[] = []
    try {
      const request = `GET ${services}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${server.token}\r\n\r\n`
      for (let i = 0; i < 150; i++) {
        const socket = connect({ port: server.port, host: '127.0.0.1', rejectUnauthorized: false })
        socket.on('error', () => {})
        await new Promise<void>((resolve) =>
          socket.once('secureConnect', () => {
            socket.pause()
            socket.write(request)
            resolve()
          }),
        )
        sockets.push(socket)
      }
      const before = process.memoryUsage().rss
      for (let i = 0; i < 40; i++) {
        const body = service(`s${i}`, {}, { annotations: { a: 'x'.repeat(200_000) } })
        expect((await post(server, services, body)).status).toBe(201)
      }
      expect((await ask(server, { path: '/healthz' })).status).toBe(200)
      expect((process.memoryUsage().rss - before) >> 20).toBeLessThan(600)
    } finally {
      for (const socket of sockets) socket.destroy()
      await server.close()
    }
  })
})
