// A file that exists only in memory, as stdin or stdout of a program: the program reads or writes all of it without waking this process.

import { closeSync, constants, fstatSync, openSync, readSync, writeSync } from 'node:fs'
import { memoryFile } from '../libc.ts'

export class MemoryFile {
  /** Negative if the kernel has no such files or no free descriptors. Then the object only stores what is appended. */
  readonly fd: number
  readonly #stored: Uint8Array[] = []
  #size = 0

  constructor(name: string) {
    this.fd = memoryFile(name)
  }

  /** Must not be mixed with the output of a program. The caller may reuse the bytes afterwards. */
  append(bytes: Uint8Array): void {
    if (this.fd < 0) {
      this.#stored.push(Uint8Array.from(bytes))
      return
    }
    for (let done = 0; done < bytes.length; ) {
      const written = writeSync(this.fd, bytes, done, bytes.length - done, this.#size)
      this.#size += written
      done += written
    }
  }

  bytes(): Buffer {
    if (this.fd < 0) return Buffer.concat(this.#stored)
    const all = Buffer.allocUnsafe(fstatSync(this.fd).size)
    let length = 0
    while (length < all.length) {
      const more = readSync(this.fd, all, length, all.length - length, length)
      if (more === 0) break
      length += more
    }
    return all.subarray(0, length)
  }

  toString(): string {
    return this.bytes().toString()
  }

  /** Opens another descriptor, which reads from the beginning. */
  reopen(): number {
    return openSync(`/proc/self/fd/${this.fd}`, constants.O_RDONLY)
  }

  close(): void {
    if (this.fd >= 0) closeSync(this.fd)
  }
}
