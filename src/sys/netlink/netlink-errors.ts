// Errors of netlink that a person can act on: they name the operation, the errno, and the kernel's own description.

import { type Errno, ProxyError } from '../../lib/errors.ts'
import { EPERM, errnoName, errnoText } from '../errno.ts'
import type { NetlinkAnswer } from './message.ts'

/** The kernel refused an operation, or a system call failed. */
export class NetlinkError extends ProxyError {
  /** The operation: `list conntrack entries`. */
  readonly op: string
  /** The errno by name, such as `ENOENT`; '' if the answer could not be read. */
  readonly errno: string

  constructor(op: string, errno: string, message: string, fields: Readonly<Record<string, unknown>> = {}) {
    super('netlink', message, { fields: { op, ...(errno === '' ? {} : { errno }), ...fields } })
    this.op = op
    this.errno = errno
  }
}

/** Makes the error for an answer. `sequence` is 0 if a system call failed. */
export function netlinkError(purpose: string, op: string, answer: NetlinkAnswer, sequence: number): NetlinkError {
  const name = errnoName(answer.errno)
  const meaning = answer.errno === EPERM ? 'operation not permitted, this needs CAP_NET_ADMIN' : errnoText(answer.errno)
  const words = answer.text === '' ? '' : `: kernel says "${answer.text}"`
  const where = answer.offset < 0 ? '' : ` at byte ${answer.offset} of the message`
  const message = `${purpose}: ${op}: ${name} (${meaning})${words}${where}`
  return new NetlinkError(op, name, message, { text: answer.text, offset: answer.offset, sequence })
}

/** Makes the error for a system call that failed without an answer from netlink. */
export function callError(purpose: string, op: string, errno: number): NetlinkError {
  return netlinkError(purpose, op, { errno, text: '', offset: -1, about: 0 }, 0)
}

export function malformed(purpose: string, op: string, what: string): NetlinkError {
  return new NetlinkError(op, '', `${purpose}: ${op}: malformed answer from the kernel: ${what}`)
}

/** True if the kernel refused an operation with one of these errnos. */
export function isRefusedWith(error: unknown, ...names: readonly Errno[]): boolean {
  return error instanceof NetlinkError && names.some((name) => name === error.errno)
}
