// Listens on the admin socket, which only its owner may open. What is answered there is in admin.ts.

import { chmodSync, lstatSync, unlinkSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { connect } from 'node:net'
import { dirname } from 'node:path'
import { describeError, hasErrno, ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { ensureSharedDirectory } from '../sys/private-files.ts'
import { type AdminAnswers, makeAdminRoutes } from './admin.ts'
import { AdminConnections } from './admin-connections.ts'
import { routeRequests } from './routing.ts'

export interface AdminSocket {
  readonly path: string
  close(): Promise<void>
}

/** Rejects if the socket cannot be made. Replaces a socket on which no process listens any more. */
export async function listenAdmin(path: string, answers: AdminAnswers, log: Logger): Promise<AdminSocket> {
  ensureSharedDirectory(dirname(path))
  await removeDeadSocket(path)
  const handle = routeRequests(makeAdminRoutes(answers), log)
  const connections = new AdminConnections()
  const server = createServer({ requestTimeout: 10_000 }, (request, response) => {
    connections.serve(request.socket, response)
    response.on('error', () => {})
    Promise.resolve(handle(request, response)).catch((error: unknown) => {
      log.error('Admin request failed', { error: describeError(error) })
      response.destroy()
    })
  })
  server.on('connection', (socket) => connections.add(socket))
  await bind(server, path)
  chmodSync(path, 0o600)
  server.on('error', (error) => log.error('Admin socket failed', { error: describeError(error) }))
  // An open admin socket must not keep the process alive.
  server.unref()
  return {
    path,
    close: () =>
      new Promise((resolve) => {
        // This removes the socket's file as well.
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

function bind(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    // The umask keeps other users out between bind and chmod.
    const mask = process.umask(0o177)
    server.once('error', reject)
    server.listen(path, () => {
      server.off('error', reject)
      resolve()
    })
    process.umask(mask)
  })
}

/** Throws a ProxyError 'admin' if the path is in use, by a proxy or by anything else than a socket. */
async function removeDeadSocket(path: string): Promise<void> {
  const stats = lstatSync(path, { throwIfNoEntry: false })
  if (stats === undefined) return
  if (!stats.isSocket())
    throw new ProxyError('admin', `${path} exists and is not a socket: remove it, or choose another path`)
  if (await mayBeInUse(path)) throw new ProxyError('admin', `another proxy listens on ${path}`)
  unlinkSync(path)
}

/** Only a refused connection proves that the process behind a socket is gone. */
function mayBeInUse(path: string): Promise<boolean> {
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
