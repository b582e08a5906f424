// Reads the parts that several kinds of objects have in common: ports and lists of CIDRs. Pure.

import { parseCidr } from '../../lib/ip.ts'
import type { ServicePortRecord } from '../../model/types.ts'
import { type FieldReader, fitted, isObjectName, type JsonObject, show } from './fields.ts'

type PortFields = Pick<ServicePortRecord, 'name' | 'protocol' | 'port'>

/** Reads protocol and number of a port with a name. Reports the first problem and returns undefined if the port must be skipped. */
export function readPort(
  reader: FieldReader,
  json: JsonObject,
  at: string,
  name: string | undefined,
): PortFields | undefined {
  const protocol = readProtocol(reader, json, at)
  const port = reader.integer(json, 'port', at)
  if (name === undefined) reader.problem(`${at}.name`, 'is missing; the port is skipped')
  else if (name !== '' && !isObjectName(name)) {
    reader.problem(`${at}.name`, `is not a valid name: ${show(name)}; the port is skipped`)
  } else if (port === undefined || port < 1 || port > 65535) {
    reader.problem(`${at}.port`, `must be 1 to 65535, is ${show(json.port)}; the port is skipped`)
  } else if (protocol !== undefined) return { name, protocol, port }
  return undefined
}

function readProtocol(reader: FieldReader, from: JsonObject, at: string): PortFields['protocol'] | undefined {
  const text = reader.text(from, 'protocol', at) ?? 'TCP'
  if (text === 'TCP') return 'tcp'
  if (text === 'UDP') return 'udp'
  if (text === 'SCTP') return 'sctp'
  reader.problem(`${at}.protocol`, `must be TCP, UDP or SCTP, is ${show(text)}; the port is skipped`)
  return undefined
}

/** Skips blank entries without a problem. */
export function readCidrs(reader: FieldReader, spec: JsonObject, name: string): readonly string[] {
  const cidrs: string[] = []
  for (const [i, text] of reader.texts(spec, name, 'spec')) {
    if (text.trim() === '') continue
    const cidr = parseCidr(text.trim())
    if (cidr === undefined) reader.problem(`spec.${name}[${i}]`, `is not a valid CIDR: ${show(text)}`)
    else cidrs.push(cidr.text)
  }
  return fitted(cidrs)
}
