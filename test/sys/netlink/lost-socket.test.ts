import { closeSync, readdirSync, readlinkSync } from 'node:fs'
import { expect, it } from 'vitest'
import type { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'
import { RTM_GETLINK } from '../../../src/sys/netlink/rtnetlink.ts'
import { NetlinkSocket } from '../../../src/sys/netlink/socket.ts'

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

it.runIf(process.platform === 'linux')('a lost netlink socket is opened again for the next operation', async () => {
  const before = sockets()
  const socket = new NetlinkSocket({ protocol: 'route', purpose: 'test' })
  const [, fd = -1] = [...sockets()].find(([name]) => !before.has(name)) ?? []
  let links = 0
  /** An empty struct ifinfomsg. */
  const body = (writer: MessageWriter) => writer.header(new Uint8Array(16))
  const list = () => socket.dump({ op: 'list links', type: RTM_GETLINK, body }, () => void links++)
  await list()
  const seen = links
  expect(seen).toBeGreaterThan(0)
  closeSync(fd)
  await expect(list()).rejects.toThrow('EBADF')
  await list()
  expect(links).toBe(2 * seen)
  socket.close()
  expect(sockets().size).toBe(before.size)
})
