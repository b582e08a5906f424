// One plain request to the API server as a client of the test's choosing; kubectl is always the admin.

import { readFileSync } from 'node:fs'
import { request } from 'node:https'
import type { Cluster } from './cluster.ts'

export interface Answer {
  readonly status: number
  readonly body: string
}

export interface Question {
  readonly path: string
  readonly token: string
  /** Of a gate; the API server's own by default. */
  readonly port?: number
}

export function ask(cluster: Cluster, { path, token, port = cluster.port }: Question): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const options = {
      host: '127.0.0.1',
      port,
      path,
      agent: false,
      ca: readFileSync(cluster.authority.certificate),
      headers: { authorization: `Bearer ${token}` },
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
    outgoing.end()
  })
}
