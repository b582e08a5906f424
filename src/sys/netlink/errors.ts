// What goes wrong with netlink, as errors a person can act on: the operation, the errno by name, and the kernel's own words.

import { ProxyError } from '../../lib/errors.ts'
import { EPERM, errnoName, errnoText } from '../errno.ts'
import type { Answer } from './message.ts'

/** `sequence` 0: not about a message, but about a call. */
export function netlinkError(purpose: string, op: string, answer: Answer, sequence: number): ProxyError {
  const name = errnoName(answer.errno)
  const meaning = answer.errno === EPERM ? 'operation not permitted, this needs CAP_NET_ADMIN' : errnoText(answer.errno)
  const words = answer.text === '' ? '' : `: kernel says "${answer.text}"`
  const where = answer.offset < 0 ? '' : ` at byte ${answer.offset} of the message`
  return new ProxyError('netlink', `${purpose}: ${op}: ${name} (${meaning})${words}${where}`, {
    fields: { op, errno: name, text: answer.text, offset: answer.offset, sequence },
  })
}

/** A system call that failed without an answer from netlink. */
export function callError(purpose: string, op: string, errno: number): ProxyError {
  return netlinkError(purpose, op, { errno, text: '', offset: -1, about: 0 }, 0)
}

export function malformed(purpose: string, op: string, what: string): ProxyError {
  return new ProxyError('netlink', `${purpose}: ${op}: malformed answer from the kernel: ${what}`, { fields: { op } })
}

/** The name of the errno (`ENOENT`) behind an error of this file; '' if it is another error. */
export function errnoOf(error: unknown): string {
  return error instanceof ProxyError && error.code === 'netlink' ? String(error.fields.errno ?? '') : ''
}
