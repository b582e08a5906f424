// Names and meanings of the error numbers that Linux returns. Needs no native code.

import { constants } from 'node:os'
import { getSystemErrorMap } from 'node:util'

/** Numbers that netlink uses and libuv does not know. They are the same on every architecture that Kubernetes runs on. */
const kernelOnly: Readonly<Record<number, readonly [string, string]>> = {
  85: ['ERESTART', 'the ruleset changed since it was read'],
  61: ['ENODATA', 'no data available'],
  76: ['ENOTUNIQ', 'name not unique'],
  93: ['EPROTONOSUPPORT', 'protocol not supported: is the kernel module there?'],
  95: ['EOPNOTSUPP', 'operation not supported by this kernel'],
  96: ['EPFNOSUPPORT', 'protocol family not supported: is the kernel module there?'],
  524: ['ENOTSUPP', 'operation not supported by this kernel'],
}

const names = new Map(Object.entries(constants.errno).map(([name, number]) => [number, name]))

/** Returns `ENOENT` for 2, and `errno 999` for a number without a name. */
export function errnoName(errno: number): string {
  return kernelOnly[errno]?.[0] ?? names.get(errno) ?? `errno ${errno}`
}

/** Returns the meaning in words; '' if it is unknown. */
export function errnoText(errno: number): string {
  return kernelOnly[errno]?.[1] ?? getSystemErrorMap().get(-errno)?.[1] ?? ''
}

// The numbers that control flow depends on.
export const EPERM = 1
export const ENOENT = 2
export const EINTR = 4
export const EBADF = 9
export const EAGAIN = 11
export const ENOMEM = 12
export const EBUSY = 16
export const EEXIST = 17
export const EINVAL = 22
export const ENOTSOCK = 88
export const ENOBUFS = 105
export const ERESTART = 85
