// Prints netlink messages in readable form, for SLUICE_NETLINK_DEBUG=1. Guesses which attributes are nested: the kernel does not always say. Pure.

import { AttributeReader, decodeAnswer, MessageReader, NLMSG_DONE, NLMSG_ERROR } from './message.ts'
import { addressHeader, linkHeader, RTM_NEWADDR } from './rtnetlink.ts'

const maxDepth = 8
const RTM_NEWROUTE = 24
/** The length of struct rtmsg. */
const routeHeaderLength = 12

/** Returns the number of bytes between netlink's header and the attributes of a message of this type. */
export type HeaderLength = (type: number) => number

const netfilterHeader: HeaderLength = () => 4

/** The messages of rtnetlink begin with a struct for links, addresses or routes. */
export const routeHeader: HeaderLength = (type) => {
  if (type < RTM_NEWADDR) return linkHeader
  return type < RTM_NEWROUTE ? addressHeader : routeHeaderLength
}

/** Prints a line per message and a line per attribute. Never throws on any bytes. */
export function describeMessages(
  direction: string,
  bytes: Buffer,
  length: number,
  headerLength = netfilterHeader,
): string {
  const message = new MessageReader(bytes, 0, length)
  const lines: string[] = []
  while (message.next()) {
    const { type, flags, sequence, start, end } = message
    lines.push(
      `${direction} type=0x${type.toString(16)} flags=0x${flags.toString(16)} seq=${sequence} ${end - start} bytes`,
    )
    if (type === NLMSG_ERROR || type === NLMSG_DONE) {
      const answer = decodeAnswer(message)
      lines.push(`  errno=${answer.errno} offset=${answer.offset} text=${JSON.stringify(answer.text)}`)
      continue
    }
    const header = Math.min(headerLength(type), end - start)
    lines.push(`  header ${bytes.toString('hex', start, start + header)}`)
    lines.push(...describeAttributes(bytes, start + header, end, 1))
  }
  if (message.error !== undefined) lines.push(`${direction} ${message.error}`)
  return lines.map((line) => `${line}\n`).join('')
}

function describeAttributes(bytes: Buffer, start: number, end: number, depth: number): readonly string[] {
  const reader = new AttributeReader().reset(bytes, start, end)
  const indent = '  '.repeat(depth)
  const lines: string[] = []
  while (reader.next()) {
    if (depth < maxDepth && looksNested(bytes, reader.start, reader.end)) {
      lines.push(`${indent}[${reader.type}]`, ...describeAttributes(bytes, reader.start, reader.end, depth + 1))
    } else {
      lines.push(`${indent}[${reader.type}] ${describeValue(bytes.subarray(reader.start, reader.end))}`)
    }
  }
  if (reader.error !== undefined) lines.push(`${indent}${reader.error}: ${bytes.toString('hex', start, end)}`)
  return lines
}

function looksNested(bytes: Buffer, start: number, end: number): boolean {
  if (end - start < 8) return false
  const reader = new AttributeReader().reset(bytes, start, end)
  while (reader.next()) if (reader.type === 0 || reader.type > 64) return false
  return reader.error === undefined
}

function describeValue(value: Buffer): string {
  const text = value.toString('latin1').replace(/\0+$/, '')
  return /^[\x20-\x7e]{3,}$/.test(text) ? `${value.toString('hex')} ${JSON.stringify(text)}` : value.toString('hex')
}
