// Sends one request to the API server with a token that the test chooses; kubectl is always the admin.

import { readFileSync } from 'node:fs'
import { request } from 'node:https'
import type { Cluster } from './cluster.ts'

export interface ApiAnswer {
  readonly status: number
  readonly body: string
}

export interface ApiRequest {
  readonly path: string
  readonly token: string
  /** Port of a gate; default: the API server itself. */
  readonly port?: number
  /** A merge patch to send instead of a GET. */
  readonly patch?: object
}

export function requestApi(
  cluster: Cluster,
  { path, token, patch, port = cluster.port }: ApiRequest,
): Promise<ApiAnswer> {
  return new Promise((resolve, reject) => {
    const options = {
      host: '127.0.0.1',
      port,
      path,
      agent: false,
      ca: readFileSync(cluster.authority.certificate),
      method: patch === undefined ? 'GET' : 'PATCH',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/merge-patch+json' },
      signal: AbortSignal.timeout(20_000),
    }
    const outgoing = request(options, (incoming) => {
      let body = ''
      incoming.setEncoding('utf8')
      incoming.on('data', (chunk) => {
        body += chunk
      })
      incoming.on('error', reject)
      incoming.on('end', () => resolve({ status: incoming.statusCode ?? 0, body }))
    })
    outgoing.on('error', reject)
    outgoing.end(patch === undefined ? undefined : JSON.stringify(patch))
  })
}
