// The decoders that get bytes from elsewhere, as targets of a fuzzer: each accepts any bytes, and throws only if the decoder has a bug.

import { parseManifests } from '../../src/apiserver/manifests/parse.ts'
import { decodeProtobuf } from '../../src/apiserver/protobuf/decode-protobuf.ts'
import { hasProtobufForm } from '../../src/apiserver/protobuf/protobuf-fields.ts'
import {
  endpointSlice,
  endpoints,
  event,
  namespace,
  newEvent,
  service,
  serviceCidr,
} from '../../src/apiserver/schema/kinds.ts'
import { decodeObject } from '../../src/apiserver/schema/schema.ts'
import { loadConfigFile } from '../../src/config/load.ts'
import { loadSluiceConfig } from '../../src/config/sluice-config.ts'
import { makeStatusError } from '../../src/kube/api-errors.ts'
import { decodeEndpointSlice } from '../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeNode, decodeServiceCidr } from '../../src/kube/decode/decode-node.ts'
import { decodeService } from '../../src/kube/decode/decode-service.ts'
import * as messageTables from '../../src/kube/protobuf/message-tables.ts'
import { readStatus } from '../../src/kube/protobuf/read-body.ts'
import { readMessage, UnreadBytes } from '../../src/kube/protobuf/read-message.ts'
import { isSnapshotEnd, parseEvent, parsePage, parseProtobufPage } from '../../src/kube/reflect/watch-messages.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { AddressCache } from '../../src/sys/netlink/address-codec.ts'
import { FlowDecoder } from '../../src/sys/netlink/conntrack-codec.ts'
import { decodeSet as decodeIpset } from '../../src/sys/netlink/ipset.ts'
import { decodeDestination, decodeServer } from '../../src/sys/netlink/ipvs.ts'
import { AttributeReader, decodeAnswer, MessageReader } from '../../src/sys/netlink/message.ts'
import { decodeElements } from '../../src/sys/netlink/nft/elements.ts'
import {
  decodeChain,
  decodeGeneration,
  decodeNotice,
  decodeRule,
  decodeSet,
  decodeTable,
} from '../../src/sys/netlink/nft/read-objects.ts'

export type FuzzTarget = (bytes: Buffer) => void

type ErrorType = abstract new (...given: never[]) => Error

/** Calls a decoder that refuses its input by errors of one type. */
function expectOnly(type: ErrorType, decode: () => unknown): void {
  try {
    decode()
  } catch (error) {
    if (!(error instanceof type)) throw error
  }
}

function parseJson(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8'))
  } catch {
    return undefined
  }
}

/** No object has more problems than are listed, and no problem is longer than a line of the log may be. */
function fuzzObjects(bytes: Buffer): void {
  const json = parseJson(bytes)
  for (const decode of [decodeService, decodeEndpointSlice, decodeNode, decodeServiceCidr]) {
    const { key, problems } = decode(json)
    if (problems.length > 21 || key.length > 600) throw new Error('too many problems, or a key that is too long')
    for (const { object, field, message, uid } of problems) {
      if (object.length + message.length + uid.length + field.length > 2_000) throw new Error('a problem is too long')
    }
  }
}

function fuzzAnswers(bytes: Buffer): void {
  const text = bytes.toString('utf8')
  expectOnly(ProxyError, () => isSnapshotEnd(parseEvent(text, messageTables.service).object))
  const { service, endpointSlice, node, serviceCidr } = messageTables
  for (const table of [service, endpointSlice, node, serviceCidr]) {
    expectOnly(ProxyError, () => isSnapshotEnd(parseEvent(bytes, table).object))
    expectOnly(ProxyError, () => parseProtobufPage(bytes, table))
    expectOnly(SyntaxError, () => readMessage(new UnreadBytes(bytes), table))
  }
  readStatus(bytes)
  const json = parseJson(bytes)
  expectOnly(ProxyError, () => parsePage(json))
  const { message } = makeStatusError({ status: 0, body: json ?? text, what: 'GET /' })
  if (message.length > 2_000) throw new Error('the message of a Status is too long')
}

function fuzzConfiguration(bytes: Buffer): void {
  const text = bytes.toString('utf8')
  expectOnly(ProxyError, () => loadConfigFile('file', text))
  expectOnly(ProxyError, () => loadSluiceConfig('file', text))
}

function fuzzManifests(bytes: Buffer): void {
  for (const { resource, body, lineOf } of parseManifests('file', bytes.toString('utf8')).manifests) {
    decodeObject(resource.schema, body)
    if (!(lineOf('spec.ports[0].port') >= 1)) throw new Error('a field has no line')
  }
}

const protobufKinds = [service, endpointSlice, serviceCidr, namespace, event, newEvent, endpoints].filter(
  hasProtobufForm,
)

function fuzzProtobuf(bytes: Buffer): void {
  for (const schema of protobufKinds) expectOnly(SyntaxError, () => decodeObject(schema, decodeProtobuf(bytes, schema)))
}

/** The readers of netlink report broken bytes by `error` and never throw. */
function fuzzNetlink(bytes: Buffer): void {
  const reader = new AttributeReader()
  const cache = new AddressCache()
  const messages = new MessageReader(bytes)
  while (messages.next()) {
    for (const decode of [decodeTable, decodeChain, decodeRule, decodeSet, decodeElements]) decode(messages, reader)
    decodeGeneration(messages, reader)
    decodeNotice(messages, reader)
    decodeAnswer(messages)
    decodeServer(messages, reader, cache)
    decodeIpset(messages, reader, cache, () => {})
    for (const family of [4, 6] as const) {
      decodeDestination(messages, reader, cache, family)
      for (const protocol of [6, 17]) new FlowDecoder({ family, protocol }, cache).decode(messages)
    }
  }
}

export const fuzzTargets: Readonly<Record<string, FuzzTarget>> = {
  objects: fuzzObjects,
  answers: fuzzAnswers,
  configuration: fuzzConfiguration,
  manifests: fuzzManifests,
  protobuf: fuzzProtobuf,
  netlink: fuzzNetlink,
}
