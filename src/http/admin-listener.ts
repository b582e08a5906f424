// Listens on the admin socket, which only its owner may open. What is answered there is in admin.ts.

import { createServer } from 'node:http'
import { describeError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { platform } from '../sys/platform/platform.ts'
import { type AdminAnswers, makeAdminRoutes } from './admin.ts'
import { AdminConnections } from './admin-connections.ts'
import { routeRequests } from './routing.ts'

export interface AdminSocket {
  readonly path: string
  close(): Promise<void>
}

/** Rejects if the socket cannot be made. Replaces a socket on which no process listens any more. */
export async function listenAdmin(path: string, answers: AdminAnswers, log: Logger): Promise<AdminSocket> {
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
  await platform.sockets.listen(server, path)
  server.on('error', (error) => log.error('Admin socket failed', { error: describeError(error) }))
  // An open admin socket must not keep the process alive.
  server.unref()
  return {
    path,
    close: () =>
      new Promise((resolve) => {
        server.close(() => {
          platform.sockets.forget(path)
          resolve()
        })
        server.closeAllConnections()
      }),
  }
}
