// Asks a gRPC server for its health, grpc.health.v1.Health/Check, over HTTP/2 without TLS.

import { hostPort } from '../../lib/ip.ts'
import { WireCursor, wireTypes } from '../../lib/protobuf-wire.ts'
import { encodeDelimited } from '../../lib/protobuf-writer.ts'
import type { ProbeAddress, ProbeResult, RunningProbe } from './probe-client.ts'

/** An answer has a few bytes. */
const maxAnswerBytes = 1_024
/** ServingStatus of the protocol. */
const statuses = ['UNKNOWN', 'SERVING', 'NOT_SERVING', 'SERVICE_UNKNOWN']
const statusField = 1

export function checkGrpcHealth(
  { host, port }: ProbeAddress,
  service: string,
  describeDialError: (error: Error) => ProbeResult,
): RunningProbe {
  // Loaded here, since few services ask for such probes, and the module is expensive at a start.
  const session = process
    .getBuiltinModule('node:http2')
    .connect(`http://${hostPort(host, port)}`, { settings: { enablePush: false } })
  const stream = session.request({
    ':method': 'POST',
    ':path': '/grpc.health.v1.Health/Check',
    'content-type': 'application/grpc',
    te: 'trailers',
    'user-agent': 'sluice-probe',
  })
  stream.end(frameMessage(service === '' ? Buffer.alloc(0) : encodeDelimited(1, service)))
  const done = new Promise<ProbeResult>((resolve) => {
    let code: string | undefined
    let bytes = Buffer.alloc(0)
    const fail = (error: Error) => resolve(describeDialError(error))
    const readCode = (headers: Readonly<Record<string, unknown>>) => {
      if (typeof headers['grpc-status'] === 'string') code = headers['grpc-status']
    }
    session.on('error', fail)
    // If the session fails, its error says why, and comes after that of the stream.
    stream.on('error', (error) => setImmediate(fail, error))
    stream.on('response', readCode)
    stream.on('trailers', readCode)
    stream.on('data', (chunk: Buffer) => {
      if (bytes.length < maxAnswerBytes) bytes = Buffer.concat([bytes, chunk])
    })
    stream.on('end', () => resolve({ failure: judge(code, bytes) }))
    stream.on('close', () => setImmediate(resolve, { failure: 'connection reset' }))
  })
  return { done, abandon: () => session.destroy() }
}

/** A message is preceded by a flag, whether it is compressed, and its length. */
function frameMessage(message: Buffer): Buffer {
  const head = Buffer.alloc(5)
  head.writeUInt32BE(message.length, 1)
  return Buffer.concat([head, message])
}

/** Returns why the answer is not a success. */
function judge(code: string | undefined, frame: Buffer): string | undefined {
  if (code !== undefined && code !== '0') return `gRPC code ${code.slice(0, 3)}`
  const status = readStatus(frame)
  if (status === undefined) return 'no valid gRPC answer'
  return status === 1 ? undefined : `gRPC status ${statuses[status] ?? status}`
}

/** The status of a HealthCheckResponse; 0 if the field is absent, undefined if the bytes are not one whole message. */
function readStatus(frame: Buffer): number | undefined {
  if (frame.length < 5 || frame[0] !== 0 || frame.readUInt32BE(1) !== frame.length - 5) return undefined
  try {
    return readField(frame.subarray(5))
  } catch {
    return undefined
  }
}

function readField(message: Buffer): number {
  const cursor = new WireCursor(message)
  let status = 0
  while (cursor.at < message.length) {
    const tag = cursor.readVarint(message.length)
    if (tag === ((statusField << 3) | wireTypes.varint)) status = cursor.readVarint(message.length)
    else cursor.skipField(tag & 7, message.length)
  }
  return status
}
