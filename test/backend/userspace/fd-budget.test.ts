// Too many clients, too few descriptors or ports: relays turn clients away and count them, nothing crashes, and service resumes afterwards.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { type AddressInfo, createConnection, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { listenerEntry } from '../../../src/backend/userspace/entries.ts'
import { FdBudget } from '../../../src/backend/userspace/fd-budget.ts'
import { openAnyPort } from '../../../src/backend/userspace/proxy-ports.ts'
import { RelayListeners } from '../../../src/backend/userspace/relay-listeners.ts'
import { ProxyError } from '../../../src/lib/errors.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'

const opened: (() => unknown)[] = []
afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close()
})

async function echo(): Promise<string> {
  const server = createServer((socket) => socket.on('error', () => {}).pipe(socket)).listen(0, '127.0.0.1')
  await once(server, 'listening')
  opened.push(() => server.close())
  return `127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** Returns the line that comes back, or the reason why none does. */
function say(port: number): Promise<{ readonly answer: string; readonly socket: Socket }> {
  const socket = createConnection({ host: '127.0.0.1', port })
  opened.push(() => socket.destroy())
  return new Promise((resolve) => {
    socket.once('data', (data) => resolve({ answer: String(data), socket }))
    socket.once('error', (error: NodeJS.ErrnoException) => resolve({ answer: error.code ?? 'error', socket }))
    socket.once('close', () => resolve({ answer: 'closed', socket }))
    socket.write('hello')
  })
}

async function startStarved(files: number, budget: string): Promise<{ child: ChildProcess; port: number }> {
  const worker = join(import.meta.dirname, 'fd-budget.worker.ts')
  const command = `ulimit -n ${files}; exec "$0" --import tsx "$@"`
  const child = spawn('sh', ['-c', command, process.execPath, worker, await echo(), budget], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
  opened.push(() => child.kill('SIGKILL'))
  const [{ port }] = (await once(child, 'message')) as [{ port: number }]
  return { child, port }
}

async function figures(child: ChildProcess): Promise<{ shed: Record<string, number>; active: number }> {
  const answered = once(child, 'message')
  child.send('figures')
  return (await answered)[0] as { shed: Record<string, number>; active: number }
}

describe('too many open files', () => {
  it('turns clients away beyond the budget, and serves again when other clients have gone', async () => {
    const { child, port } = await startStarved(256 + 20, 'budget')
    const all = await Promise.all(Array.from({ length: 15 }, () => say(port)))
    const served = all.filter(({ answer }) => answer === 'hello')
    expect(served).toHaveLength(10)
    expect((await figures(child)).shed).toEqual({ files: 5 })
    for (const { socket } of served) socket.destroy()
    while ((await figures(child)).active > 0);
    expect((await say(port)).answer).toBe('hello')
  })

  it('survives when the kernel itself has no more descriptors', async () => {
    const { child, port } = await startStarved(64, 'none')
    const all = await Promise.all(Array.from({ length: 80 }, () => say(port)))
    expect(all.some(({ answer }) => answer === 'hello')).toBe(true)
    expect(all.some(({ answer }) => answer !== 'hello')).toBe(true)
    for (const { socket } of all) socket.destroy()
    while ((await figures(child)).active > 0);
    expect((await say(port)).answer).toBe('hello')
    expect((await figures(child)).shed.files).toBeGreaterThan(0)
  })

  it('notices when the limit is raised', () => {
    let limit = 260
    const budget = new FdBudget(() => limit)
    expect([budget.acquire(2), budget.acquire(2), budget.acquire(2)]).toEqual([true, true, false])
    limit = 264
    expect([budget.acquire(2), budget.used]).toEqual([true, 6])
  })
})

describe('proxy ports', () => {
  const fake = (taken: readonly number[]) => async (port: number) => {
    if (!taken.includes(port)) return { port, close: async () => {} }
    throw new ProxyError('listen', 'no', { cause: Object.assign(new Error('in use'), { code: 'EADDRINUSE' }) })
  }

  it('are tried in turn from a random start, round the end of the range', async () => {
    const options = { random: () => 0.9, avoid: () => false }
    expect((await openAnyPort(fake([]), [3000, 3009], options)).port).toBe(3009)
    expect((await openAnyPort(fake([3009, 3000]), [3000, 3009], options)).port).toBe(3001)
    const avoid = { random: () => 0, avoid: (port: number) => port < 3003 }
    expect((await openAnyPort(fake([]), [3000, 3009], avoid)).port).toBe(3003)
  })

  it('run out with a message that says so', async () => {
    const none = openAnyPort(fake([3000, 3001]), [3000, 3001], { random: () => 0, avoid: () => false })
    await expect(none).rejects.toThrow('all 2 ports of portRange (--proxy-port-range) 3000-3001 are in use')
  })

  it('are refused for a single service; the others are served', async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    await once(taken, 'listening')
    opened.push(() => taken.close())
    const { port } = taken.address() as AddressInfo
    const listeners = new RelayListeners({
      portRange: [port, port],
      udpIdleMs: 250,
      budget: new FdBudget(),
      clock: systemClock,
      log: silentLogger,
    })
    const entry = (id: string, protocol: 'tcp' | 'udp' | 'sctp') =>
      listenerEntry(id, { protocol, endpoints: [], serving: [], affinitySeconds: 0 })
    const entries = [entry('a', 'tcp'), entry('b', 'udp'), entry('c', 'sctp')]
    const refused = await listeners.put(entries, { host: '127.0.0.1', avoid: () => false })
    opened.push(() => listeners.close(['b']))
    expect(refused.map(({ id, error }) => [id, error.code])).toEqual([
      ['a', 'no-proxy-port'],
      ['c', 'sctp'],
    ])
    expect(listeners.findOpened('b')).toEqual({ protocol: 'udp', port })
    expect(listeners.figures()).toMatchObject({ relay_listeners: 1, relay_listen_failures: 2 })
  })
})
