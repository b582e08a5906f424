import { closeSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { expect, it, vi } from 'vitest'
import type { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'
import { RTM_GETLINK, RTNLGRP_IPV4_IFADDR } from '../../../src/sys/netlink/rtnetlink.ts'
import { NetlinkSocket } from '../../../src/sys/netlink/socket.ts'
import { subscribe } from '../../../src/sys/netlink/subscribe.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const opening = vi.hoisted(() => ({ fails: false, attempts: 0 }))

vi.mock('../../../src/sys/netlink/open-socket.ts', async (original) => {
  const real = await original<typeof import('../../../src/sys/netlink/open-socket.ts')>()
  return {
    ...real,
    openNetlink: (...args: Parameters<typeof real.openNetlink>) => {
      opening.attempts++
      if (opening.fails) throw new Error('EMFILE')
      return real.openNetlink(...args)
    },
  }
})

/** The descriptors that are sockets. */
function sockets(): ReadonlyMap<string, number> {
  const found = new Map<string, number>()
  for (const fd of readdirSync('/proc/self/fd')) {
    try {
      const file = readlinkSync(`/proc/self/fd/${fd}`)
      if (file.startsWith('socket:')) found.set(file, Number(fd))
    } catch {
      // The descriptor of the folder itself is closed already.
    }
  }
  return found
}

/** The socket that was opened since `before`: its name and descriptor. */
const newSocket = (before: ReadonlyMap<string, number>): readonly [string, number] =>
  [...sockets()].find(([name]) => !before.has(name)) ?? ['', -1]

/** The multicast groups that a socket has joined, as the kernel lists them. */
function groupsOf(socket: string): string {
  const inode = socket.replace(/\D/g, '')
  const line = readFileSync('/proc/self/net/netlink', 'utf8')
    .split('\n')
    .find((one) => one.trim().endsWith(` ${inode}`))
  return line?.trim().split(/\s+/)[3] ?? ''
}

/** An empty struct ifinfomsg. */
const body = (writer: MessageWriter) => writer.header(new Uint8Array(16))

const linux = it.runIf(process.platform === 'linux')

linux('a lost netlink socket is opened again for the next operation', async () => {
  const before = sockets()
  const socket = new NetlinkSocket({ protocol: 'route', purpose: 'test' })
  const [, fd] = newSocket(before)
  let links = 0
  const list = () => socket.dump({ op: 'list links', type: RTM_GETLINK, body }, () => void links++)
  await list()
  const seen = links
  expect(seen).toBeGreaterThan(0)
  expect(socket.isLost).toBe(false)
  closeSync(fd)
  expect(socket.isLost).toBe(true)
  await expect(list()).rejects.toThrow('EBADF')
  await list()
  expect(links).toBe(2 * seen)
  expect(socket.timesOpened).toBe(2)
  socket.close()
  expect(sockets().size).toBe(before.size)
})

linux('nothing is sent to the file that has got the descriptor of a lost socket', async () => {
  const before = sockets()
  const socket = new NetlinkSocket({ protocol: 'route', purpose: 'test' })
  const [, fd] = newSocket(before)
  closeSync(fd)
  const server = await new Promise<Server>((resolve) => {
    const one = createServer().listen(0, '127.0.0.1', () => resolve(one))
  })
  const taken = [...sockets().values()].includes(fd)
  const list = () => socket.dump({ op: 'list links', type: RTM_GETLINK, body }, () => {})
  // Whatever has the number now, a socket or nothing, gets no bytes.
  await expect(list()).rejects.toThrow('EBADF')
  await list()
  socket.close()
  expect([...sockets().values()].includes(fd)).toBe(taken)
  await new Promise((resolve) => server.close(resolve))
})

linux('a lost socket for notifications is opened again, in the same groups, and the loss is reported', async () => {
  const before = sockets()
  const clock = new FakeClock()
  const reasons: string[] = []
  const listener = { message() {}, lost: (reason: string) => reasons.push(reason) }
  const subscription = subscribe({ protocol: 'route', purpose: 'test', clock }, [RTNLGRP_IPV4_IFADDR], listener)
  const [first, fd] = newSocket(before)
  const groups = groupsOf(first)
  expect(groups).not.toBe('')
  await clock.advance(60_000)
  expect(reasons).toEqual([])
  closeSync(fd)
  await clock.advance(10_000)
  expect(reasons).toEqual(['the socket for notifications was lost (EBADF) and opened again'])
  const [second] = newSocket(before)
  expect(second).not.toBe(first)
  expect(groupsOf(second)).toBe(groups)
  await clock.advance(60_000)
  expect(reasons).toHaveLength(1)
  subscription.close()
  expect(sockets().size).toBe(before.size)
  expect(clock.armed).toBe(0)
})

linux('while no socket can be opened, attempts become rarer; the loss is reported when one succeeds', async () => {
  const before = sockets()
  const clock = new FakeClock()
  let lost = 0
  const listener = { message() {}, lost: () => void lost++ }
  const subscription = subscribe({ protocol: 'route', purpose: 'test', clock }, [RTNLGRP_IPV4_IFADDR], listener)
  // libuv gives the descriptor to the kernel in the next turn of the event loop, and aborts if it is closed by then.
  await clock.advance(1_000)
  closeSync(newSocket(before)[1])
  opening.fails = true
  opening.attempts = 0
  await clock.advance(10 * 60_000)
  expect(opening.attempts).toBeGreaterThan(10)
  expect(opening.attempts).toBeLessThan(30)
  expect(lost).toBe(0)
  opening.fails = false
  await clock.advance(30_000)
  expect(lost).toBe(1)
  expect(sockets().size).toBe(before.size + 1)
  subscription.close()
  expect(sockets().size).toBe(before.size)
  expect(clock.armed).toBe(0)
})
