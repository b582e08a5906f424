// The API without a socket, for callers in the same process; it has the form of the API client of `kube`.

import { ProxyError } from '../lib/errors.ts'
import type { Answer, Api } from './api.ts'
import { child, isObject, text } from './json.ts'
import type { Sink } from './watch.ts'

export interface LocalRequest {
  readonly method?: string
  readonly path: string
  readonly query?: Readonly<Record<string, string | undefined>>
  readonly body?: unknown
  readonly contentType?: string
  readonly signal?: AbortSignal
}

export interface LocalClient {
  /** Throws a ProxyError with the code and status of the refusal. */
  request(request: LocalRequest): Promise<{ readonly status: number; readonly json: unknown }>
  /** Batches of complete lines. */
  stream(request: LocalRequest): Promise<AsyncGenerator<readonly string[]>>
}

const codes: Readonly<Record<number, string>> = {
  400: 'bad-request',
  404: 'not-found',
  405: 'method-not-allowed',
  409: 'conflict',
  410: 'expired',
  422: 'invalid',
}

export function localClient(api: Api): LocalClient {
  const ask = async (request: LocalRequest): Promise<Answer> => {
    const query = new URLSearchParams()
    for (const [name, value] of Object.entries(request.query ?? {})) if (value !== undefined) query.set(name, value)
    const answer = await api.answer({
      method: request.method ?? 'GET',
      path: request.path,
      query,
      accept: 'application/json',
      contentType: request.contentType ?? 'application/json',
      body: Buffer.from(request.body === undefined ? '' : JSON.stringify(request.body)),
    })
    if (answer.status >= 400) throw refusal(request, answer)
    return answer
  }
  return {
    async request(request) {
      const { status, body } = await ask(request)
      return { status, json: body === '' ? undefined : JSON.parse(body) }
    },
    async stream(request) {
      const answer = await ask(request)
      return lines(answer, request.signal)
    },
  }
}

async function* lines(answer: Answer, signal: AbortSignal | undefined): AsyncGenerator<readonly string[]> {
  let waiting: string[] = []
  let size = 0
  let wake = () => {}
  let drained = () => {}
  const over = new AbortController()
  const stop = () => over.abort(signal?.reason)
  signal?.addEventListener('abort', stop, { once: true })
  if (signal?.aborted) stop()
  const sink: Sink = {
    write(chunk) {
      waiting.push(chunk)
      size += chunk.length
      wake()
      return size < 1 << 20
    },
    drained: () =>
      new Promise((resolve) => {
        if (size === 0) resolve()
        else drained = resolve
      }),
    get waiting() {
      return size
    },
  }
  let ended = false
  const running = Promise.resolve(answer.stream?.(sink, over.signal)).finally(() => {
    ended = true
    wake()
  })
  running.catch(() => {}) // told by the await below
  try {
    while (true) {
      if (waiting.length === 0 && !ended) {
        await new Promise<void>((resolve) => {
          wake = resolve
        })
      }
      const batch = waiting
      waiting = []
      size = 0
      drained()
      const complete = batch
        .join('')
        .split('\n')
        .filter((line) => line !== '')
      if (complete.length > 0) yield complete
      if (signal?.aborted) throw signal.reason
      if (ended && waiting.length === 0) break
    }
    await running
  } finally {
    signal?.removeEventListener('abort', stop)
    over.abort()
    drained()
  }
}

function refusal(request: LocalRequest, { status, body }: Answer): ProxyError {
  let said: unknown
  try {
    said = JSON.parse(body)
  } catch {
    said = { message: body.trim() }
  }
  const told = isObject(said) ? said : {}
  const reason = text(told, 'reason')
  const code =
    reason === 'AlreadyExists' ? 'already-exists' : (codes[status] ?? (status >= 500 ? 'server-error' : 'bad-response'))
  return new ProxyError(code, `${request.method ?? 'GET'} ${request.path}: ${status} ${text(told, 'message')}`, {
    fields: { status, reason, causes: child(told, 'details').causes ?? [] },
  })
}
