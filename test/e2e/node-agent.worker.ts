// Acts for the test inside the network namespace of the node: relays the port of the API server to a socket file of the host, answers
// as every endpoint, dials, and fetches. A network namespace does not isolate socket files.

import { createServer as createHttpServer, get } from 'node:http'
import { connect, createServer, type Socket } from 'node:net'

const [controlPath, relayPath, relayPort, endpointPort] = process.argv.slice(2)

const ignoreErrors = (socket: Socket) => socket.on('error', () => socket.destroy())

/** Makes the API server available at 127.0.0.1:relayPort. */
const relay = createServer((client) => {
  const upstream = connect(relayPath!)
  ignoreErrors(client)
  ignoreErrors(upstream)
  client.pipe(upstream).pipe(client)
  client.on('close', () => upstream.destroy())
  upstream.on('close', () => client.destroy())
})

/** Every address of this namespace is an endpoint; the answer is the address that was reached. */
const endpoints = createServer((client) => {
  ignoreErrors(client)
  client.end(`${client.localAddress?.replace(/^::ffff:/, '')}\n`)
})

function dial(host: string, port: number, limitMs: number): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect({ host, port })
    let text = ''
    const finish = (answer: string) => {
      socket.destroy()
      resolve(answer)
    }
    socket.setTimeout(limitMs, () => finish('timeout'))
    socket.on('data', (chunk) => {
      text += chunk
    })
    socket.on('end', () => finish(text.trim()))
    socket.on('error', (error: NodeJS.ErrnoException) => finish(error.code ?? error.message))
  })
}

function fetchText(url: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const outgoing = get(url, { agent: false, timeout: 5_000 }, (incoming) => {
      let body = ''
      incoming.setEncoding('utf8')
      incoming.on('data', (chunk) => {
        body += chunk
      })
      incoming.on('end', () => resolve(`${incoming.statusCode}\n${body}`))
      incoming.on('error', reject)
    })
    outgoing.on('timeout', () => outgoing.destroy(new Error('timeout')))
    outgoing.on('error', reject)
  })
}

const control = createHttpServer(async (request, response) => {
  const { pathname, searchParams: query } = new URL(request.url ?? '/', 'http://control')
  try {
    if (pathname === '/dial') {
      response.end(await dial(query.get('host') ?? '', Number(query.get('port')), Number(query.get('limit'))))
    } else response.end(await fetchText(query.get('url') ?? ''))
  } catch (error) {
    response.statusCode = 502
    response.end(String(error))
  }
})

relay.listen(Number(relayPort), '127.0.0.1')
endpoints.listen(Number(endpointPort), '::')
control.listen(controlPath)
