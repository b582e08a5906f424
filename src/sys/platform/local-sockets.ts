// The contract for sockets by which processes of one machine reach each other: Unix sockets, or named pipes on Windows.

import type { Server } from 'node:net'
import { connect } from 'node:net'
import { hasErrno } from '../../lib/errors.ts'

export interface LocalSockets {
  /** The folder in which the sockets of running proxies are found. */
  readonly folder: string
  /** Returns what `listen` and `connect` take for the socket with this name. */
  pathOf(name: string): string
  /** Lists the paths of sockets by the files in the folder. No process may listen on some of them any more. */
  list(folder: string): readonly string[]
  /** True if a process has left a file for this path. */
  exists(path: string): boolean
  /** Listens so that only this user and administrators can connect. Rejects with a ProxyError if the path is in use. */
  listen(server: Server, path: string): Promise<void>
  /** Removes the file of a socket that this process has closed. */
  forget(path: string): void
}

/** Only a refused connection, or a path that does not exist, proves that no process listens. */
export function mayBeInUse(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    const done = (yes: boolean) => {
      socket.destroy()
      resolve(yes)
    }
    socket.on('connect', () => done(true))
    socket.on('error', (error) => done(!hasErrno(error, 'ECONNREFUSED', 'ENOENT')))
  })
}

/** Resolves when the server listens; rejects with the error of the system. */
export function bindPath(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(path, () => {
      server.off('error', reject)
      resolve()
    })
  })
}
