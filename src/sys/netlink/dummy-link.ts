// Writes the messages that make and remove a dummy interface and its addresses. Reading them is in interface-addresses.ts. Pure.

import { familyNumber } from '../ip-numbers.ts'
import { addressBytes } from './address-codec.ts'
import { littleEndian } from './message.ts'
import type { MessageWriter } from './message-writer.ts'
import { addressHeader, IFA, IFLA, linkHeader } from './rtnetlink.ts'

const IFLA_INFO_KIND = 1
/** Skips duplicate address detection: no other machine has the address. */
const IFA_F_NODAD = 2

export function writeDummy(writer: MessageWriter, name: string): void {
  writeLinkName(writer, name)
  const at = writer.open(IFLA.LINKINFO)
  writer.text(IFLA_INFO_KIND, 'dummy')
  writer.close(at)
}

/** Writes the body of messages about an existing link: get, delete. */
export function writeLinkName(writer: MessageWriter, name: string): void {
  writer.header(new Uint8Array(linkHeader))
  writer.text(IFLA.IFNAME, name)
}

/** Writes a single address (/32 or /128) of the interface with that index. */
export function writeAddress(writer: MessageWriter, index: number, ip: string): void {
  const bytes = addressBytes(ip)
  const family = bytes.length === 16 ? 6 : 4
  const header = Buffer.alloc(addressHeader)
  header[0] = familyNumber(family)
  header[1] = 8 * bytes.length
  if (littleEndian) header.writeUInt32LE(index, 4)
  else header.writeUInt32BE(index, 4)
  writer.header(header)
  writer.raw(IFA.LOCAL, bytes)
  writer.raw(IFA.ADDRESS, bytes)
  if (family === 6) writer.hostU32(IFA.FLAGS, IFA_F_NODAD)
}
