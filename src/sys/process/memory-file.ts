// Text for and from programs in a file that is nowhere but in memory: programs read and print it whole, and wake nobody meanwhile.

import { closeSync, constants, fstatSync, openSync, readSync, writeSync } from 'node:fs'
import { memoryFile } from '../libc.ts'

export class MemoryFile {
  /** Below 0 where there are no such files, or no descriptors left: then it only keeps what is appended. */
  readonly fd: number
  readonly #kept: Uint8Array[] = []
  #size = 0

  constructor(name: string) {
    this.fd = memoryFile(name)
  }

  /** Must not be mixed with what a program prints. The bytes may be used for something else afterwards. */
  append(bytes: Uint8Array): void {
    if (this.fd < 0) {
      this.#kept.push(Uint8Array.from(bytes))
      return
    }
    for (let done = 0; done < bytes.length; ) {
      const wrote = writeSync(this.fd, bytes, done, bytes.length - done, this.#size)
      this.#size += wrote
      done += wrote
    }
  }

  bytes(): Buffer {
    if (this.fd < 0) return Buffer.concat(this.#kept)
    const all = Buffer.allocUnsafe(fstatSync(this.fd).size)
    let got = 0
    while (got < all.length) {
      const more = readSync(this.fd, all, got, all.length - got, got)
      if (more === 0) break
      got += more
    }
    return all.subarray(0, got)
  }

  toString(): string {
    return this.bytes().toString()
  }

  /** Another descriptor, which reads from the beginning. */
  reopen(): number {
    return openSync(`/proc/self/fd/${this.fd}`, constants.O_RDONLY)
  }

  close(): void {
    if (this.fd >= 0) closeSync(this.fd)
  }
}
