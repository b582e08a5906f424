import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { ProxyError } from '../../src/lib/errors.ts'
import { listAddresses, nodeAddresses, watchAddresses } from '../../src/sys/netlink/interface-addresses.ts'
import { NLM_F_ACK, NLM_F_REQUEST } from '../../src/sys/netlink/message.ts'
import { MessageWriter } from '../../src/sys/netlink/message-writer.ts'
import { isRefusedWith } from '../../src/sys/netlink/netlink-errors.ts'
import { NetlinkSocket } from '../../src/sys/netlink/socket.ts'
import { subscribe } from '../../src/sys/netlink/subscribe.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { publishProgram } from '../support/publish-program.ts'

const GETTABLE = 0xa01
const GETGEN = 0xa10
const nftablesGroup = 7

let namespace: EnteredNamespace
const open: { close(): void }[] = []

beforeAll(() => {
  namespace = enterNamespace()
})

afterAll(() => namespace.leave())

afterEach(() => {
  for (const one of open.splice(0)) one.close()
})

function netfilter(receiveBufferBytes?: number): NetlinkSocket {
  const buffer = receiveBufferBytes === undefined ? {} : { receiveBufferBytes }
  const socket = new NetlinkSocket({ protocol: 'netfilter', purpose: 'test', sendBufferBytes: 8 << 20, ...buffer })
  open.push(socket)
  return socket
}

const table = (name: string) => (writer: MessageWriter) => {
  writer.netfilter(2)
  writer.text(1, name)
}

/** Makes a transaction of nf_tables that makes or deletes tables. */
function makeTransaction(type: number, names: readonly string[]): { writer: MessageWriter; last: number } {
  const writer = new MessageWriter()
  const mark = (type: number) => {
    writer.begin(type, NLM_F_REQUEST)
    writer.netfilter(0, 10)
    writer.end()
  }
  mark(0x10)
  let last = 0
  for (const [i, name] of names.entries()) {
    last = writer.begin(type, i === names.length - 1 ? NLM_F_REQUEST | NLM_F_ACK : NLM_F_REQUEST)
    table(name)(writer)
    writer.end()
  }
  mark(0x11)
  return { writer, last }
}

const NEWTABLE = 0xa00
const DELTABLE = 0xa02

describe('requests', () => {
  it('returns the answer and its acknowledgement', async () => {
    const socket = netfilter()
    const generations: number[] = []
    const body = (writer: MessageWriter) => writer.netfilter(0)
    await socket.request({ op: 'read generation', type: GETGEN, body }, (message) => {
      const reader = message.attributes(4)
      while (reader.next()) if (reader.type === 1) generations.push(reader.u32())
    })
    expect(generations).toHaveLength(1)
  })

  it('fails with errno, operation and position', async () => {
    const socket = netfilter()
    const failing = socket.request({ op: 'read table nothing', type: GETTABLE, body: table('nothing') })
    await expect(failing).rejects.toMatchObject({
      code: 'netlink',
      message: expect.stringContaining('test: read table nothing: ENOENT'),
      fields: { op: 'read table nothing', errno: 'ENOENT', offset: 20 },
    })
    expect(isRefusedWith(await failing.catch((error: unknown) => error), 'ENOENT')).toBe(true)
  })

  it("contains the kernel's own description", async () => {
    const socket = new NetlinkSocket({ protocol: 'route', purpose: 'test' })
    open.push(socket)
    // RTM_NEWLINK for an interface that does not exist.
    const body = (writer: MessageWriter) => {
      const header = Buffer.alloc(16)
      header.writeInt32LE(9999, 4)
      writer.header(header)
      writer.raw(3, Buffer.from('x'.repeat(40)))
    }
    const error = await socket.request({ op: 'rename', type: 16, body }).catch((error: unknown) => error)
    expect(error).toBeInstanceOf(ProxyError)
    expect((error as ProxyError).message).toMatch(/kernel says ".+"/)
  })

  it('queues requests that are made at the same time', async () => {
    const socket = netfilter()
    const outcomes = await Promise.allSettled(
      Array.from({ length: 20 }, (_, i) =>
        i % 2 === 0
          ? socket.dump({ op: 'list tables', type: GETTABLE, body: (writer) => writer.netfilter(0) }, () => {})
          : socket.request({ op: 'read', type: GETTABLE, body: table('nothing') }),
      ),
    )
    expect(outcomes.map(({ status }) => status)).toEqual(
      Array.from({ length: 20 }, (_, i) => (i % 2 === 0 ? 'fulfilled' : 'rejected')),
    )
  })

  it('gives up at the deadline or when the signal fires if the kernel does not answer, and works again afterwards', async () => {
    const socket = netfilter()
    // The stated last message of this batch does not exist, so its acknowledgement never comes.
    const silent = () => {
      const { writer, last } = makeTransaction(NEWTABLE, ['silent'])
      return [writer, last + 100] as const
    }
    await expect(socket.batch('wait', ...silent(), { deadlineMs: 20 })).rejects.toThrow(
      'test: wait: the kernel did not answer within 20 ms',
    )
    const stop = new AbortController()
    const waiting = socket.batch('wait', ...silent(), { signal: stop.signal })
    setTimeout(() => stop.abort(new Error('shutdown')), 10)
    await expect(waiting).rejects.toThrow('shutdown')
    const { writer, last } = makeTransaction(DELTABLE, ['silent'])
    expect(await socket.batch('delete', writer, last)).toEqual({ failures: [], overflow: false })
  })

  it('rejects waiting operations when it is closed', async () => {
    const socket = netfilter()
    const { writer, last } = makeTransaction(NEWTABLE, ['silent'])
    const waiting = socket.batch('wait', writer, last + 100)
    const queued = socket.request({ op: 'read', type: GETTABLE, body: table('silent') })
    setTimeout(() => socket.close(), 10)
    await expect(waiting).rejects.toThrow('closed')
    await expect(queued).rejects.toThrow('closed')
    namespace.exec('nft', ['flush', 'ruleset'])
  })
})

describe('batches', () => {
  it('are committed as a whole, or report each failure and change nothing', async () => {
    const socket = netfilter()
    const make = makeTransaction(NEWTABLE, ['a', 'b'])
    expect(await socket.batch('make', make.writer, make.last)).toEqual({ failures: [], overflow: false })
    expect(namespace.exec('nft', ['list', 'tables'])).toBe('table ip a\ntable ip b\n')
    const remove = makeTransaction(DELTABLE, ['a', 'x', 'y', 'b'])
    const { failures } = await socket.batch('delete', remove.writer, remove.last)
    expect(failures.map(({ errno, sequence }) => [errno, sequence])).toEqual([
      [2, 3],
      [2, 4],
    ])
    expect(socket.failure('delete', failures[0] as never).message).toContain('ENOENT')
    expect(namespace.exec('nft', ['list', 'tables'])).toBe('table ip a\ntable ip b\n')
    namespace.exec('nft', ['flush', 'ruleset'])
  })

  it('report that answers were lost instead of waiting for them', async () => {
    const socket = netfilter(4096)
    const names = Array.from({ length: 2000 }, (_, i) => `t${i}`)
    const { writer, last } = makeTransaction(DELTABLE, names)
    const outcome = await socket.batch('delete', writer, last)
    expect(outcome.overflow).toBe(true)
  })
})

describe('notifications', () => {
  it('report every change with its sender, until closed', async () => {
    const socket = netfilter()
    const senders: number[] = []
    let onCommit = () => {}
    const committed = new Promise<void>((resolve) => {
      onCommit = resolve
    })
    const subscription = subscribe({ protocol: 'netfilter', purpose: 'test' }, [nftablesGroup], {
      message(message) {
        senders.push(message.port)
        if (message.type === 0xa0f) onCommit()
      },
      lost: () => senders.push(-1),
    })
    const { writer, last } = makeTransaction(NEWTABLE, ['noticed'])
    await socket.batch('make', writer, last)
    await committed
    expect(senders).toEqual([socket.port, socket.port])
    subscription.close()
    subscription.close()
    namespace.exec('nft', ['flush', 'ruleset'])
    await new Promise((resolve) => setTimeout(resolve, 30))
    expect(senders).toHaveLength(2)
  })

  it('report that some were lost', async () => {
    let lost = 0
    const reported = new Promise<void>((resolve) => {
      const listener = {
        message() {},
        lost() {
          lost++
          resolve()
        },
      }
      open.push(subscribe({ protocol: 'netfilter', purpose: 'test', receiveBufferBytes: 1 }, [nftablesGroup], listener))
    })
    const text = Array.from({ length: 300 }, (_, i) => `add table ip lost${i}`).join('\n')
    namespace.exec('nft', ['-f', '-'], text)
    await reported
    expect(lost).toBeGreaterThan(0)
    namespace.exec('nft', ['flush', 'ruleset'])
  })
})

describe('interface addresses', () => {
  it('lists addresses of all interfaces with name, prefix and scope', async () => {
    namespace.exec('ip', ['link', 'add', 'va', 'type', 'veth', 'peer', 'name', 'vb'])
    namespace.exec('ip', ['addr', 'add', '192.0.2.1/24', 'dev', 'va'])
    namespace.exec('ip', ['addr', 'add', '192.0.2.7', 'peer', '192.0.2.8/32', 'dev', 'va'])
    namespace.exec('ip', ['addr', 'add', '2001:db8::1/64', 'dev', 'vb', 'nodad'])
    const addresses = await listAddresses()
    expect(addresses).toContainEqual({ interface: 'lo', ip: '127.0.0.1', family: 4, bits: 8, scope: 'host' })
    expect(addresses).toContainEqual({ interface: 'va', ip: '192.0.2.1', family: 4, bits: 24, scope: 'global' })
    expect(addresses).toContainEqual({ interface: 'va', ip: '192.0.2.7', family: 4, bits: 32, scope: 'global' })
    expect(addresses).toContainEqual({ interface: 'vb', ip: '2001:db8::1', family: 6, bits: 64, scope: 'global' })
    expect(addresses.map(({ ip }) => ip)).not.toContain('192.0.2.8')
    // Node reports the same for interfaces that are up.
    for (const { interface: name, ip, bits } of nodeAddresses()) {
      expect(addresses).toContainEqual(expect.objectContaining({ interface: name, ip, bits }))
    }
  })

  it('reports changes, and a burst of changes once', async () => {
    let calls = 0
    let changed = () => {}
    const watch = watchAddresses(
      () => {
        calls++
        changed()
      },
      { debounceMs: 100 },
    )
    open.push(watch)
    const next = () =>
      new Promise<void>((resolve) => {
        changed = resolve
      })
    const first = next()
    for (let i = 1; i <= 5; i++) namespace.exec('ip', ['addr', 'add', `198.51.100.${i}/32`, 'dev', 'lo'])
    await first
    const second = next()
    namespace.exec('ip', ['addr', 'del', '198.51.100.1/32', 'dev', 'lo'])
    await second
    expect(calls).toBeGreaterThanOrEqual(2)
    expect(calls).toBeLessThan(6)
  })
})

describe('as an unprivileged user', () => {
  it('reports which capability is missing', async () => {
    const published = await publishProgram(join(import.meta.dirname, 'unprivileged.worker.ts'))
    try {
      const [node, file] = published.command
      const output = execFileSync(node, [file], { encoding: 'utf8', cwd: '/' })
      expect(output).toBe('nftables: read: EPERM (operation not permitted, this needs CAP_NET_ADMIN)')
    } finally {
      published.remove()
    }
  })
})
