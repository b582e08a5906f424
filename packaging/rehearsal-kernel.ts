// Stands for the kernel in the rehearsal: it acknowledges every netlink message, has nothing to list, and keeps nothing.

import { EAGAIN } from '../src/sys/errno.ts'
import type { Koffi } from '../src/sys/libc.ts'
import { MessageReader, NLM_F_ACK, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR } from '../src/sys/netlink/message.ts'
import { MessageWriter } from '../src/sys/netlink/message-writer.ts'

type Call = (...args: never[]) => number

/** A library whose sockets are answered at once. */
export function makeRehearsalKernel(): Koffi {
  const sockets = new RehearsalSockets()
  const calls: Readonly<Record<string, Call>> = {
    socket: () => sockets.open(),
    getsockname: (fd: number, address: Buffer) => address.writeUInt32LE(fd, 4) && 0,
    sendto: (fd: number, bytes: Buffer, length: number) => sockets.send(fd, bytes, length),
    recv: (fd: number, buffer: Buffer) => sockets.receive(fd, buffer),
    recvmmsg: () => -1,
  }
  return {
    load: () => ({ func: (definition) => makeNative(calls[readName(definition)] ?? (() => 0)) }),
    struct: () => undefined,
    errno: () => EAGAIN,
    address: () => 0n,
    node: { poll: () => ({ close() {}, unref() {} }) },
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
      if ((message.flags & NLM_F_DUMP) === NLM_F_DUMP) this.#answer(fd, NLMSG_DONE, message.sequence)
      else if (message.flags & NLM_F_ACK) this.#answer(fd, NLMSG_ERROR, message.sequence)
    }
    return length
  }

  /** Answers with the error number 0. */
  #answer(fd: number, type: number, sequence: number): void {
    const writer = new MessageWriter()
    writer.begin(type, 0)
    writer.header(new Uint8Array(20))
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
