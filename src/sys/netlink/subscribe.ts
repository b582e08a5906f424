// Listens to netlink's multicast groups: who changed what in the kernel, and the news that some news was lost.

import { EAGAIN, EINTR } from '../errno.ts'
import * as libc from '../libc.ts'
import { MessageReader, NLMSG_OVERRUN } from './message.ts'
import { debugging, openNetlink, receiveBytes, type SocketOptions, trace } from './open-socket.ts'

export interface Subscription {
  close(): void
}

export interface NotificationListener {
  /** One call per message; the reader is valid during the call. */
  message(message: MessageReader): void
  /** Messages were lost, because we were too slow or the buffer is too small: whatever was derived from them is in doubt. */
  lost(): void
}

/** Joins multicast groups on a socket of its own, so that a flood of news never displaces answers. */
export function subscribe(
  options: SocketOptions,
  groups: readonly number[],
  listener: NotificationListener,
): Subscription {
  const fd = openNetlink(options, groups)
  const buffer = Buffer.allocUnsafe(receiveBytes)
  let closed = false
  const readiness = libc.watchReadable(fd, () => {
    // A bound: under a flood the event loop must still get its turn. The fd stays readable, so we are called again.
    for (let left = 64; left > 0 && !closed; left--) {
      const length = libc.recv(fd, buffer, libc.MSG_DONTWAIT | libc.MSG_TRUNC)
      if (length === -EAGAIN) return
      if (length === -EINTR) continue
      if (length < 0 || length > buffer.length) {
        listener.lost()
        continue
      }
      if (debugging) trace('notice', options, buffer, length)
      const message = new MessageReader(buffer, 0, length)
      while (!closed && message.next()) {
        if (message.type === NLMSG_OVERRUN) listener.lost()
        else listener.message(message)
      }
      if (message.error !== undefined) listener.lost()
    }
  })
  return {
    close() {
      if (closed) return
      closed = true
      readiness.close()
      libc.close(fd)
    },
  }
}
