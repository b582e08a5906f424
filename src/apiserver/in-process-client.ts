// The API for callers in the same process, without a socket. It has the form of the API client in kube/client.ts.

import { ApiError, type ErrorCode } from '../lib/errors.ts'
import type { RestResponse } from './http/rest-messages.ts'
import type { ApiRouter } from './http/router.ts'
import { WatchQueue } from './requests/watch-queue.ts'
import { getList, getObject, getString, isObject, type Json } from './schema/json.ts'

export interface InProcessRequest {
  readonly method?: string
  readonly path: string
  readonly query?: Readonly<Record<string, string | undefined>>
  readonly body?: unknown
  readonly contentType?: string
  readonly signal?: AbortSignal
}

export interface InProcessClient {
  /** Rejects with an ApiError that has the code and status of the failure. */
  request(request: InProcessRequest): Promise<{ readonly status: number; readonly json: unknown }>
  /** Yields batches of complete lines. */
  stream(request: InProcessRequest): Promise<AsyncGenerator<readonly string[]>>
}

export function createInProcessClient(router: ApiRouter): InProcessClient {
  const send = async (request: InProcessRequest): Promise<RestResponse> => {
    const query = new URLSearchParams()
    for (const [name, value] of Object.entries(request.query ?? {})) if (value !== undefined) query.set(name, value)
    const response = await router.respond({
      method: request.method ?? 'GET',
      path: request.path,
      query,
      accept: 'application/json',
      contentType: request.contentType ?? 'application/json',
      body: Buffer.from(request.body === undefined ? '' : JSON.stringify(request.body)),
    })
    if (response.status >= 400) throw toApiError(request, response)
    return response
  }
  return {
    async request(request) {
      const { status, body } = await send(request)
      return { status, json: body === '' ? undefined : JSON.parse(body) }
    },
    async stream(request) {
      return readLines(await send(request), request.signal)
    },
  }
}

/** Throws the signal's reason when it aborts. */
async function* readLines(response: RestResponse, signal: AbortSignal | undefined): AsyncGenerator<readonly string[]> {
  const queue = new WatchQueue()
  const stopped = new AbortController()
  const stop = () => stopped.abort(signal?.reason)
  signal?.addEventListener('abort', stop, { once: true })
  if (signal?.aborted) stop()
  const running = Promise.resolve(response.stream?.(queue, stopped.signal)).finally(() => queue.end())
  // The await below reports the error.
  running.catch(() => {})
  try {
    for (let text = await queue.read(); text !== undefined; text = await queue.read()) {
      const lines = text.split('\n').filter((line) => line !== '')
      if (lines.length > 0) yield lines
      signal?.throwIfAborted()
    }
    signal?.throwIfAborted()
    await running
  } finally {
    signal?.removeEventListener('abort', stop)
    stopped.abort()
    queue.end()
  }
}

const errorCodes: Readonly<Record<number, ErrorCode>> = {
  400: 'bad-request',
  404: 'not-found',
  405: 'method-not-allowed',
  409: 'conflict',
  410: 'expired',
  422: 'invalid',
}

function toApiError(request: InProcessRequest, { status, body }: RestResponse): ApiError {
  const failure = parseFailure(body)
  const reason = getString(failure, 'reason')
  const explanation = getString(failure, 'message')
  const message = `${request.method ?? 'GET'} ${request.path}: ${status} ${explanation}`
  const causes = getList(getObject(failure, 'details'), 'causes')
  return new ApiError(codeOf(status, reason), message, { status, reason, explanation, causes })
}

/** Most failures are Status objects; unknown paths have a plain text. */
function parseFailure(body: string): Json {
  try {
    const failure: unknown = JSON.parse(body)
    return isObject(failure) ? failure : {}
  } catch {
    return { message: body.trim() }
  }
}

function codeOf(status: number, reason: string): ErrorCode {
  if (reason === 'AlreadyExists') return 'already-exists'
  return errorCodes[status] ?? (status >= 500 ? 'server-error' : 'bad-response')
}
