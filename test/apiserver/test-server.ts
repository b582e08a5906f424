// Starts a server for a test, builds small objects, and sends requests.

import { mkdtempSync, rmSync } from 'node:fs'
import { request } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type ApiServer, type ApiServerOptions, startApiServer } from '../../src/apiserver/start.ts'
import { silentLogger } from '../../src/lib/log.ts'

export const folder = (): { path: string; remove(): void } => {
  const path = mkdtempSync(join(tmpdir(), 'sluice-api-'))
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) }
}

export const start = (options: Partial<ApiServerOptions> = {}): Promise<ApiServer> =>
  startApiServer({ log: silentLogger, ...options })

export type Body = Record<string, unknown>

export const service = (name: string, spec: Body = {}, metadata: Body = {}): Body => ({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name, ...metadata },
  spec: { ports: [{ port: 80 }], ...spec },
})

export const pod = (name: string, labels: Body, ip: string, more: { spec?: Body; status?: Body } = {}): Body => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, labels },
  spec: { nodeName: 'node-1', ...more.spec },
  status: { podIP: ip, ...more.status },
})

export const slice = (name: string, serviceName: string, ips: readonly string[]): Body => ({
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: { name, labels: { 'kubernetes.io/service-name': serviceName } },
  addressType: 'IPv4',
  endpoints: ips.map((ip) => ({ addresses: [ip], conditions: { ready: true } })),
  ports: [{ port: 8080 }],
})

export const services = '/api/v1/namespaces/default/services'
export const pods = '/api/v1/namespaces/default/pods'
export const slices = '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices'

export interface Reply {
  readonly status: number
  // biome-ignore lint/suspicious/noExplicitAny: each test knows the form of the responses that it reads
  readonly json: any
  readonly headers: Record<string, string | string[] | undefined>
}

export interface Question {
  readonly method?: string
  readonly path: string
  readonly body?: unknown
  readonly contentType?: string
  readonly accept?: string
  readonly token?: string
}

function encodeBody(body: unknown): string | Buffer | undefined {
  if (body === undefined || typeof body === 'string' || Buffer.isBuffer(body)) return body
  return JSON.stringify(body)
}

/** Sends a request over TLS. */
export function ask(server: ApiServer, question: Question): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const { body } = question
    const raw = encodeBody(body)
    const outgoing = request(
      {
        host: '127.0.0.1',
        port: server.port,
        path: question.path,
        method: question.method ?? 'GET',
        rejectUnauthorized: false,
        agent: false,
        headers: {
          authorization: `Bearer ${question.token ?? server.token}`,
          ...(question.accept === undefined ? {} : { accept: question.accept }),
          ...(raw === undefined
            ? {}
            : { 'content-type': question.contentType ?? 'application/json', 'content-length': Buffer.byteLength(raw) }),
        },
      },
      (incoming) => {
        let text = ''
        incoming.setEncoding('utf8')
        incoming.on('data', (chunk) => {
          text += chunk
        })
        incoming.on('error', reject)
        incoming.on('end', () => {
          let json: unknown = text
          try {
            json = JSON.parse(text)
          } catch {
            // Some responses are plain text.
          }
          resolve({ status: incoming.statusCode ?? 0, json, headers: incoming.headers })
        })
      },
    )
    outgoing.on('error', reject)
    outgoing.end(raw)
  })
}

export const post = (server: ApiServer, path: string, body: unknown): Promise<Reply> =>
  ask(server, { method: 'POST', path, body })
export const put = (server: ApiServer, path: string, body: unknown): Promise<Reply> =>
  ask(server, { method: 'PUT', path, body })
export const patch = (
  server: ApiServer,
  path: string,
  body: unknown,
  type = 'application/merge-patch+json',
): Promise<Reply> => ask(server, { method: 'PATCH', path, body, contentType: type })
