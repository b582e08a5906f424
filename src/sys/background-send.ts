// Sends a large datagram from another thread, one at a time among all sockets of a process.

import * as libc from './libc.ts'
import type { MessageWriter } from './netlink/message-writer.ts'

/**
 * The send in the background, of which there is at most one among all sockets that share this object. The sockets of a process share one,
 * because the kernel would block the main thread in any other send.
 */
export class BackgroundSend {
  #running: Promise<number> | undefined

  /** Resolves when no send is in the background. */
  async whenIdle(): Promise<void> {
    while (this.#running !== undefined) await this.#running.catch(() => {})
  }

  async run(fd: number, { bytes, length }: MessageWriter): Promise<number> {
    const running = libc.sendInBackground(fd, bytes, length)
    this.#running = running
    try {
      return await running
    } finally {
      this.#running = undefined
    }
  }

  get isIdle(): boolean {
    return this.#running === undefined
  }
}
