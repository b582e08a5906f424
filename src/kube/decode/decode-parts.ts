// Reads the parts that several kinds of objects have in common: ports and lists of CIDRs. Pure.

import { parseCidr } from '../../lib/ip.ts'
import type { Steps } from '../../lib/yielding.ts'
import type { ServicePortRecord } from '../../model/types.ts'
import { copyFitted, type FieldReader, formatValue, isObjectName, type JsonObject } from './fields.ts'

type PortFields = Pick<ServicePortRecord, 'name' | 'protocol' | 'port'>

/** The only port of a service needs no name. */
export const isPortName = (name: string): boolean => name === '' || isObjectName(name)

export const isPortNumber = (port: number): boolean => port >= 1 && port <= 65535

/** Reads protocol and number of a port with a name. Reports the first problem and returns undefined if the port must be skipped. */
export function readPort(
  reader: FieldReader,
  json: JsonObject,
  at: string,
  name: string | undefined,
): PortFields | undefined {
  const protocol = readProtocol(reader, json, at)
  const port = reader.readInteger(json, 'port', at)
  if (name === undefined) reader.report(`${at}.name`, 'is missing; the port is skipped')
  else if (!isPortName(name)) {
    reader.report(`${at}.name`, `is not a valid name: ${formatValue(name)}; the port is skipped`)
  } else if (port === undefined || !isPortNumber(port)) {
    reader.report(`${at}.port`, `must be 1 to 65535, is ${formatValue(json.port)}; the port is skipped`)
  } else if (protocol !== undefined) return { name, protocol, port }
  return undefined
}

function readProtocol(reader: FieldReader, from: JsonObject, at: string): PortFields['protocol'] | undefined {
  const text = reader.readText(from, 'protocol', at) ?? 'TCP'
  const protocol = protocolOf(text)
  if (protocol !== undefined) return protocol
  reader.report(`${at}.protocol`, `must be TCP, UDP or SCTP, is ${formatValue(text)}; the port is skipped`)
  return undefined
}

export function protocolOf(text: string): PortFields['protocol'] | undefined {
  if (text === 'TCP') return 'tcp'
  if (text === 'UDP') return 'udp'
  return text === 'SCTP' ? 'sctp' : undefined
}

/** Skips blank entries without a problem. */
export function* readCidrs(reader: FieldReader, spec: JsonObject, name: string): Steps<readonly string[]> {
  const cidrs: string[] = []
  yield* reader.visitTexts(spec, name, 'spec', (text, i) => {
    const trimmed = text.trim()
    if (trimmed === '') return
    const cidr = parseCidr(trimmed)
    if (cidr === undefined) reader.report(`spec.${name}[${i}]`, `is not a valid CIDR: ${formatValue(text)}`)
    else cidrs.push(cidr.text)
  })
  return copyFitted(cidrs)
}
