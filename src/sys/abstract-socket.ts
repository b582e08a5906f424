// Unix sockets with abstract names: they belong to the network namespace, need no file, and vanish with the process that listens.

import { constants } from 'node:os'
import * as libc from './libc.ts'

const AF_UNIX = 1
const SOCK_STREAM = 1
const SOCK_NONBLOCK = 0o4000
const SO_PEERCRED = 17
/** The size of sun_path in struct sockaddr_un. */
const pathBytes = 108

/** The path to give to Node. It has the full length, since versions of Node differ in whether they pad a shorter one. */
export const abstractPath = (name: string): string => `\0${name.padEnd(pathBytes - 1, '.')}`

export interface AbstractConnection {
  readonly fd: number
  /** The user and the process that listen. The pid is 0 if that process is in another PID namespace. */
  readonly uid: number
  readonly pid: number
}

/** Undefined if no process listens, or if it accepts no more connections. */
export function connectAbstract(name: string): AbstractConnection | undefined {
  const fd = libc.socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | libc.SOCK_CLOEXEC, 0)
  if (fd < 0) return undefined
  const address = Buffer.alloc(2 + pathBytes)
  new Uint16Array(address.buffer, address.byteOffset, 1)[0] = AF_UNIX
  address.write(abstractPath(name), 2)
  /** struct ucred: pid, uid, gid. */
  const peer = Buffer.alloc(12)
  if (libc.connect(fd, address) < 0 || libc.getsockoptBytes(fd, libc.SOL_SOCKET, SO_PEERCRED, peer) < 0) {
    libc.close(fd)
    return undefined
  }
  const words = new Int32Array(peer.buffer, peer.byteOffset, 3)
  return { fd, pid: words[0] as number, uid: words[1] as number }
}

/** True for the error of listening on a name that another process has. */
export const isNameTaken = (error: NodeJS.ErrnoException): boolean => error.errno === -constants.errno.EADDRINUSE
