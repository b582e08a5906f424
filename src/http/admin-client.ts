// Asks a running proxy through its admin socket: which one, and what.

import { readdirSync } from 'node:fs'
import { request } from 'node:http'
import { connect } from 'node:net'
import { join } from 'node:path'
import { type ErrorCode, ProxyError } from '../lib/errors.ts'
import type { AdminEvent, Connections, Explanation, Inputs, Question, ServiceSummary, Summary } from './admin.ts'

const directory = '/run/sluice'

/** Where the proxy of a node listens; '' if it is told not to. */
export function socketPath(node: string, env: NodeJS.ProcessEnv): string {
  const told = env.SLUICE_ADMIN_SOCKET ?? ''
  if (told === 'off') return ''
  return told === '' ? join(directory, `${node}.sock`) : told
}

/** The one named, that of the environment, or the only one that somebody listens on. */
export async function findSocket(given: string, env: NodeJS.ProcessEnv, folder = directory): Promise<string> {
  if (given !== '') return given
  const told = env.SLUICE_ADMIN_SOCKET ?? ''
  if (told !== '' && told !== 'off') return told
  // A proxy that was killed leaves its socket behind.
  const live = await Promise.all(
    listSockets(folder).map(async (name) => ((await listening(join(folder, name))) ? [name] : [])),
  )
  const sockets = live.flat()
  if (sockets.length === 1) return join(folder, sockets[0] as string)
  const other = 'or name a source: --kubeconfig FILE, or --manifests DIR'
  if (sockets.length === 0) {
    throw new ProxyError('no-proxy', `no proxy runs here (none listens in ${folder}): start one, ${other}`)
  }
  throw new ProxyError('several', `several proxies run here (${sockets.join(', ')}): choose with --socket, ${other}`)
}

/** Not being permitted is an answer, too: somebody is there. */
function listening(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    socket.on('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code === 'EACCES'))
  })
}

function listSockets(folder: string): readonly string[] {
  try {
    return readdirSync(folder).filter((name) => name.endsWith('.sock'))
  } catch {
    return []
  }
}

export class AdminClient {
  readonly path: string

  constructor(path: string) {
    this.path = path
  }

  summary(): Promise<Summary> {
    return this.#ask('/v1/summary')
  }

  services(one: string, kernel: boolean): Promise<readonly ServiceSummary[]> {
    return this.#ask('/v1/services', { service: one, kernel: kernel ? '1' : '0' })
  }

  explain({ target, from }: Question): Promise<readonly Explanation[]> {
    return this.#ask('/v1/explain', { target, from })
  }

  inputs(): Promise<Inputs> {
    return this.#ask('/v1/inputs')
  }

  connections(): Promise<readonly Connections[]> {
    return this.#ask('/v1/connections')
  }

  /** Until the signal or the proxy ends it. */
  async events(onEvent: (event: AdminEvent) => void, signal: AbortSignal): Promise<void> {
    let rest = ''
    await this.#send('/v1/events', signal, (chunk) => {
      const lines = (rest + chunk).split('\n')
      rest = lines.pop() as string
      for (const line of lines) if (line.startsWith('data: ')) onEvent(JSON.parse(line.slice(6)) as AdminEvent)
    })
  }

  async #ask<T>(path: string, query: Readonly<Record<string, string>> = {}): Promise<T> {
    let body = ''
    const status = await this.#send(`${path}?${new URLSearchParams(query)}`, AbortSignal.timeout(60_000), (chunk) => {
      body += chunk
    })
    if (status === 200) return JSON.parse(body) as T
    throw refusal(body, status, this.path)
  }

  #send(path: string, signal: AbortSignal, onText: (chunk: string) => void): Promise<number> {
    return new Promise((resolve, reject) => {
      const fail = (cause: Error) =>
        signal.aborted && signal.reason?.name !== 'TimeoutError' ? resolve(0) : reject(unreachable(this.path, cause))
      const sent = request({ socketPath: this.path, path, signal, agent: false }, (response) => {
        response.setEncoding('utf8')
        response.on('data', onText)
        response.on('end', () => resolve(response.statusCode ?? 0))
        response.on('error', fail)
      })
      sent.on('error', fail)
      sent.end()
    })
  }
}

function refusal(body: string, status: number, path: string): ProxyError {
  try {
    // The proxy is of this version or near it, so its codes are ours; an unknown one is only printed.
    const { error, code } = JSON.parse(body) as { error: string; code: ErrorCode }
    return new ProxyError(code, error)
  } catch {
    return new ProxyError('admin', `the proxy behind ${path} answered ${status}: ${body.trim().slice(0, 200)}`)
  }
}

function unreachable(path: string, cause: Error): ProxyError {
  const code = (cause as NodeJS.ErrnoException).code
  const why =
    code === 'ENOENT'
      ? 'there is no such socket: does the proxy run?'
      : code === 'ECONNREFUSED'
        ? 'nobody listens: the proxy has ended'
        : code === 'EACCES'
          ? 'not permitted: only its owner, usually root, may ask'
          : cause.message
  return new ProxyError('admin', `cannot ask the proxy at ${path}: ${why}`, { cause })
}
