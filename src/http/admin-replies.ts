// How the admin socket replies: one JSON document, or a stream of server-sent events.

import { describeError, ProxyError } from '../lib/errors.ts'
import { type Exchange, reply, replyText } from './routing.ts'

const writeJson = ({ response }: Exchange, status: number, value: unknown): void =>
  reply(response, { status, type: 'application/json', body: `${JSON.stringify(value)}\n` })

/** Replies with what `compute` returns. The client gets errors about its question; the router logs all others. */
export async function replyJson(exchange: Exchange, compute: () => unknown): Promise<void> {
  try {
    if (exchange.method !== 'GET') return replyText(exchange.response, 405, 'only GET is allowed here\n')
    writeJson(exchange, 200, await compute())
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    writeJson(exchange, 400, { error: describeError(error), code: error.code })
  }
}

/** The most bytes that wait for a client. A client that does not keep up is disconnected: its backlog would fill the proxy's memory. */
const maxBacklog = 1 << 20

/** Sends server-sent events, one JSON object per line, until the client disconnects. `begin` returns the function that ends the stream. */
export function streamJson<T>(exchange: Exchange, begin: (send: (event: T) => void) => () => void): void {
  const { request, response } = exchange
  const stop = tryBegin(exchange, () =>
    begin((event) => {
      if (response.writableLength > maxBacklog) response.destroy()
      else response.write(`data: ${JSON.stringify(event)}\n\n`)
    }),
  )
  if (stop === undefined) return
  request.on('close', stop)
  response.on('close', stop)
}

/** The head of the reply is sent after the stream has begun: before that, it may still be an error. */
function tryBegin(exchange: Exchange, begin: () => () => void): (() => void) | undefined {
  const { response } = exchange
  response.setHeader('Content-Type', 'text/event-stream')
  response.setHeader('Cache-Control', 'no-store')
  try {
    const stop = begin()
    response.write(': sluice\n\n')
    return stop
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    writeJson(exchange, 400, { error: describeError(error), code: error.code })
    return undefined
  }
}
