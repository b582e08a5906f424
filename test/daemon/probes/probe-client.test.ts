// Probes against real servers on loopback: what succeeds, and why others fail.

import { createServer as createHttp } from 'node:http'
import { createServer as createHttp2 } from 'node:http2'
import { createServer as createHttps } from 'node:https'
import { type AddressInfo, createServer, type Server } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import { probeEndpoint } from '../../../src/daemon/probes/probe-client.ts'
import type { ProbePlan } from '../../../src/engine/probes/probe-groups.ts'
import { encodeNumber } from '../../../src/lib/protobuf-writer.ts'
import { CertificateShop } from '../../kube/certificates.ts'

const plan: ProbePlan = { kind: 'tcp', target: '', intervalMs: 10_000, timeoutMs: 5_000, failures: 1, successes: 1 }
const servers: { close(): unknown }[] = []

afterEach(() => {
  for (const server of servers.splice(0)) server.close()
})

async function listen(server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  servers.push(server)
  return `127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** An address at which nobody listens. */
async function closedAddress(): Promise<string> {
  const server = createServer()
  const address = await listen(server)
  await new Promise((resolve) => server.close(resolve))
  return address
}

/** Accepts and never answers. */
function silentServer(): Promise<string> {
  return listen(createServer((socket) => socket.on('error', () => {})))
}

const ok = { failure: undefined }

describe('over TCP', () => {
  it('an accepted connection is a success, a refused one a failure', async () => {
    expect(await probeEndpoint(await silentServer(), plan)).toEqual(ok)
    expect(await probeEndpoint(await closedAddress(), plan)).toEqual({ failure: 'connection refused' })
  })
})

describe('over HTTP', () => {
  const http = (target: string, more: Partial<ProbePlan> = {}): ProbePlan => ({
    ...plan,
    kind: 'http',
    target,
    ...more,
  })
  const answer = () => createHttp((request, response) => response.writeHead(Number(request.url?.slice(1))).end('x'))

  it.each([
    [200, undefined],
    [302, undefined],
    [404, 'HTTP 404 Not Found'],
    [503, 'HTTP 503 Service Unavailable'],
  ])('status %i is %s', async (status, failure) => {
    expect(await probeEndpoint(await listen(answer()), http(`/${status}`))).toEqual({ failure })
  })

  it('a server that accepts and never answers fails in time, and its connection is closed', async () => {
    let closed = 0
    const address = await listen(
      createServer((socket) =>
        socket
          .on('error', () => {})
          .on('close', () => closed++)
          .resume(),
      ),
    )
    const result = await probeEndpoint(address, http('/', { timeoutMs: 100 }))
    expect(result).toEqual({ failure: 'no answer within 100 ms' })
    await expect.poll(() => closed, { timeout: 10_000 }).toBe(1)
  })

  it('a server that speaks another protocol, or closes, fails', async () => {
    const other = await listen(createServer((socket) => socket.on('error', () => {}).end('SSH-2.0-x\r\n')))
    expect(await probeEndpoint(other, http('/'))).toEqual({ failure: expect.stringContaining('no valid answer') })
    const closing = await listen(createServer((socket) => socket.on('error', () => {}).resetAndDestroy()))
    expect(await probeEndpoint(closing, http('/'))).toEqual({ failure: 'connection reset' })
  })

  it('over HTTPS no certificate is verified', async () => {
    const shop = new CertificateShop()
    servers.push({ close: () => shop.close() })
    const { cert, key } = shop.authority('pod')
    const address = await listen(createHttps({ cert, key }, (_, response) => response.end()))
    expect(await probeEndpoint(address, http('/', { kind: 'https' }))).toEqual(ok)
    expect(await probeEndpoint(await listen(answer()), http('/200', { kind: 'https' }))).toEqual({
      failure: expect.stringContaining('no valid answer'),
    })
  })
})

describe('gRPC health', () => {
  /** A server of the protocol: it has the status of each service, and the code 5 for others. */
  function health(statuses: Readonly<Record<string, number>>): Promise<string> {
    const server = createHttp2()
    server.on('stream', (stream, headers) => {
      const chunks: Buffer[] = []
      stream.on('error', () => {})
      stream.on('data', (chunk: Buffer) => chunks.push(chunk))
      stream.on('end', () => {
        const body = Buffer.concat(chunks)
        // The flag, the length, then field 1 as text.
        const name = body.length > 5 ? body.subarray(7).toString() : ''
        const status = headers[':path'] === '/grpc.health.v1.Health/Check' ? statuses[name] : undefined
        stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true })
        stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': status === undefined ? '5' : '0' }))
        const message = status ? encodeNumber(1, status) : Buffer.alloc(0)
        const head = Buffer.from([0, 0, 0, 0, message.length])
        stream.end(status === undefined ? undefined : Buffer.concat([head, message]))
      })
    })
    return listen(server as unknown as Server)
  }
  const grpc = (target = ''): ProbePlan => ({ ...plan, kind: 'grpc', target })

  it.each([
    ['', undefined],
    ['down', 'gRPC status NOT_SERVING'],
    ['new', 'gRPC status UNKNOWN'],
    ['missing', 'gRPC code 5'],
  ])('service "%s" is %s', async (service, failure) => {
    const address = await health({ '': 1, down: 2, new: 0 })
    expect(await probeEndpoint(address, grpc(service))).toEqual({ failure })
  })

  it('a server without HTTP/2, a closed port and a silent server fail', async () => {
    const http = await listen(createHttp((_, response) => response.end()))
    expect(await probeEndpoint(http, grpc())).toEqual({ failure: expect.any(String) })
    expect(await probeEndpoint(await closedAddress(), grpc())).toEqual({ failure: 'connection refused' })
    const silent = await probeEndpoint(await silentServer(), { ...grpc(), timeoutMs: 100 })
    expect(silent).toEqual({ failure: 'no answer within 100 ms' })
  })
})
