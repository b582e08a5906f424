// The API without a socket, for callers in the same process; it has the form of the API client of `kube`.

import { ApiError, type ErrorCode } from '../lib/errors.ts'
import type { Api, ApiAnswer } from './http/router.ts'
import type { WatchSink } from './requests/watch.ts'
import { child, isObject, text } from './schema/json.ts'

export interface LocalRequest {
  readonly method?: string
  readonly path: string
  readonly query?: Readonly<Record<string, string | undefined>>
  readonly body?: unknown
  readonly contentType?: string
  readonly signal?: AbortSignal
}

export interface LocalClient {
  /** Throws an ApiError with the code and status of the refusal. */
  request(request: LocalRequest): Promise<{ readonly status: number; readonly json: unknown }>
  /** Batches of complete lines. */
  stream(request: LocalRequest): Promise<AsyncGenerator<readonly string[]>>
}

const codes: Readonly<Record<number, ErrorCode>> = {
  400: 'bad-request',
  404: 'not-found',
  405: 'method-not-allowed',
  409: 'conflict',
  410: 'expired',
  422: 'invalid',
}

export function localClient(api: Api): LocalClient {
  const ask = async (request: LocalRequest): Promise<ApiAnswer> => {
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

async function* lines(answer: ApiAnswer, signal: AbortSignal | undefined): AsyncGenerator<readonly string[]> {
  let waiting: string[] = []
  let size = 0
  let wake = () => {}
  let drained = () => {}
  const over = new AbortController()
  const stop = () => over.abort(signal?.reason)
  signal?.addEventListener('abort', stop, { once: true })
  if (signal?.aborted) stop()
  const sink: WatchSink = {
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

function refusal(request: LocalRequest, { status, body }: ApiAnswer): ApiError {
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
  const causes = child(told, 'details').causes
  const message = `${request.method ?? 'GET'} ${request.path}: ${status} ${text(told, 'message')}`
  return new ApiError(code, message, { status, reason, causes: Array.isArray(causes) ? causes : [] })
}
