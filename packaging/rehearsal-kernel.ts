// Stands for the kernel in the rehearsal: it acknowledges every netlink message, has nothing to list, and keeps nothing. Programs end at
// once and succeed.

import { openSync, unlinkSync, writeSync } from 'node:fs'
import { EAGAIN } from '../src/sys/errno.ts'
import type { Koffi } from '../src/sys/libc.ts'
import { MessageReader, NLM_F_ACK, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR } from '../src/sys/netlink/message.ts'
import { MessageWriter } from '../src/sys/netlink/message-writer.ts'
import { messageTypes } from '../src/sys/netlink/nft/nft-types.ts'

type Call = (...args: never[]) => number

/** A library whose sockets are answered at once. */
export function makeRehearsalKernel(): Koffi {
  const sockets = new RehearsalSockets()
  const programs = new RehearsalPrograms()
  const calls: Readonly<Record<string, Call>> = {
    socket: () => sockets.open(),
    getsockname: (fd: number, address: Buffer) => address.writeUInt32LE(fd, 4) && 0,
    sendto: (fd: number, bytes: Buffer, length: number) => sockets.send(fd, bytes, length),
    recv: (fd: number, buffer: Buffer) => sockets.receive(fd, buffer),
    recvmmsg: () => -1,
    memfd_create: openNamelessFile,
    posix_spawn_file_actions_adddup2: (_actions: Buffer, fd: number, as: number) => programs.pass(fd, as),
    posix_spawn: (pid: Int32Array, _path: string, ...[, , args]: [unknown, unknown, readonly string[]]) =>
      programs.start(pid, args),
    // The only call by number is pidfd_open.
    syscall: () => programs.open(),
    waitpid: (pid: number) => pid,
  }
  return {
    load: () => ({ func: (definition) => makeNative(calls[readName(definition)] ?? (() => 0)) }),
    struct: () => undefined,
    errno: () => EAGAIN,
    address: () => 0n,
    node: {
      poll(fd, _options, run) {
        if (programs.has(fd)) setImmediate(run)
        return { close() {}, unref() {} }
      },
    },
  }
}

type Native = ReturnType<ReturnType<Koffi['load']>['func']>

function makeNative(call: Call): Native {
  const native = (...args: unknown[]): number => call(...(args as never[]))
  const async = (...args: unknown[]) => {
    const done = args.pop() as (error: null, returned: number) => void
    setImmediate(() => done(null, native(...args)))
  }
  return Object.assign(native, { async })
}

/** As memfd_create, in the folder of the build. */
function openNamelessFile(): number {
  const path = '/proc/self/cwd/nameless'
  const fd = openSync(path, 'w+')
  unlinkSync(path)
  return fd
}

class RehearsalPrograms {
  #stdout = -1
  /** What stands for the program that runs. */
  #opened = -1

  open(): number {
    this.#opened = openNamelessFile()
    return this.#opened
  }

  has(fd: number): boolean {
    return fd === this.#opened
  }

  /** Notes which file the next program writes to. */
  pass(fd: number, as: number): number {
    if (as === 1) this.#stdout = fd
    return 0
  }

  start(pid: Int32Array, args: readonly string[]): number {
    // No process has this number: the kernel has fewer.
    pid[0] = 2 ** 30
    if (args.includes('--version')) writeSync(this.#stdout, 'iptables v1.8.9 (nf_tables)\n')
    return 0
  }
}

/** The name of a function in its definition in C. */
const readName = (definition: string): string => /(\w+)\(/.exec(definition)?.[1] ?? ''

class RehearsalSockets {
  readonly #answers = new Map<number, Buffer[]>()

  /** Returns a number that no file of this process has. */
  open(): number {
    const fd = 10_000 + this.#answers.size
    this.#answers.set(fd, [])
    return fd
  }

  send(fd: number, bytes: Buffer, length: number): number {
    const message = new MessageReader(bytes, 0, length)
    while (message.next()) {
      const { type, flags, sequence } = message
      if (type === messageTypes.generation.get) this.#answer(fd, messageTypes.generation.add, sequence, 4)
      if ((flags & NLM_F_DUMP) === NLM_F_DUMP) this.#answer(fd, NLMSG_DONE, sequence, 20)
      else if (flags & NLM_F_ACK) this.#answer(fd, NLMSG_ERROR, sequence, 20)
    }
    return length
  }

  /** Answers with zeros: the error number 0, or the header of an object without attributes. */
  #answer(fd: number, type: number, sequence: number, zeros: number): void {
    const writer = new MessageWriter()
    writer.begin(type, 0)
    writer.header(new Uint8Array(zeros))
    writer.end()
    const answer = Buffer.from(writer.bytes.subarray(0, writer.length))
    answer.writeUInt32LE(sequence, 8)
    this.#answers.get(fd)?.push(answer)
  }

  receive(fd: number, buffer: Buffer): number {
    const answer = this.#answers.get(fd)?.shift()
    return answer === undefined ? -1 : answer.copy(buffer)
  }
}
