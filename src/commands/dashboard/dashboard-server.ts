// Serves the dashboard: the files of the page and its JSON, to browsers that have the token.

import { randomBytes } from 'node:crypto'
import { type Exchange, parseTarget, type Routes, routeRequests } from '../../http/routing.ts'
import { type HttpListener, listen } from '../../http/server.ts'
import { isUnspecified, splitHostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { makePageApi, type PageSources } from './page-api.ts'
import { type PageFile, readPageFiles } from './page-files.ts'
import { type Decision, judgeRequest, type Secrets, safeHeaders } from './page-guard.ts'

export interface DashboardOptions extends PageSources {
  /** `ip:port`; with port 0 the kernel chooses a port. */
  readonly address: string
  /** Names by which browsers may reach the dashboard, besides addresses and localhost. */
  readonly hosts: ReadonlySet<string>
  readonly log: Logger
}

export interface Dashboard {
  /** With the token: who has it may look. */
  readonly url: string
  close(): Promise<void>
}

export async function startDashboard(options: DashboardOptions): Promise<Dashboard> {
  const { address, hosts, log, feed } = options
  const routes = { ...makeFileRoutes(readPageFiles()), ...makePageApi(options) }
  const route = routeRequests(routes, log)
  const token = randomBytes(24).toString('base64url')
  const session = randomBytes(24).toString('base64url')
  let secrets: Secrets = { token, session, cookie: 'sluice' }
  const listener = await listen({
    address,
    log,
    handler: (request, response) => {
      const { method = 'GET', headers } = request
      // As the routes read it: what is judged is what is answered.
      const target = parseTarget(request.url ?? '/')
      const verdict: Decision =
        target === undefined
          ? { kind: 'refuse', status: 400, why: 'the path cannot be decoded' }
          : judgeRequest({ method, ...target, headers }, secrets, hosts)
      if (verdict.kind === 'answer') return route(request, response)
      const reply = (status: number, more: Record<string, string>, body: string) =>
        response
          .writeHead(status, { ...safeHeaders, 'Cache-Control': 'no-store', 'Content-Type': 'text/plain', ...more })
          .end(`${body}\n`)
      if (verdict.kind === 'refuse') reply(verdict.status, {}, verdict.why)
      else reply(303, { Location: verdict.location, 'Set-Cookie': verdict.cookie }, 'see /')
    },
  })
  secrets = { token, session, cookie: `sluice-${listener.port}` }
  return {
    url: `http://${shownHost(listener)}/?token=${token}`,
    async close() {
      feed?.close()
      await listener.close(0)
    },
  }
}

/** A wildcard is not an address that a browser can open. */
function shownHost({ address, port }: HttpListener): string {
  const host = splitHostPort(address)?.host ?? ''
  return isUnspecified(host) ? `127.0.0.1:${port}` : address
}

/** Names with a hash never change their content. The page has one document for all its addresses. */
function makeFileRoutes(files: ReadonlyMap<string, PageFile>): Routes {
  const routes: Record<string, (exchange: Exchange) => void> = {}
  for (const [name, file] of files) {
    const isHashed = /-[\w-]{8}\.\w+$/.test(name)
    routes[name === 'index.html' ? '/' : `/${name}`] = ({ request, response, path }) => {
      if (name === 'index.html' && path !== '/') {
        response.writeHead(404, safeHeaders).end()
        return
      }
      response.writeHead(200, {
        ...safeHeaders,
        'Content-Type': file.type,
        'Content-Length': file.body.length,
        'Cache-Control': isHashed ? 'private, max-age=31536000, immutable' : 'no-store',
      })
      response.end(request.method === 'HEAD' ? undefined : file.body)
    }
  }
  return routes
}
