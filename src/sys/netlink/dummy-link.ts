// A dummy interface and its addresses: the messages that make and remove them. Pure. Reading them is in route.ts.

import { familyOf } from '../../lib/ip.ts'
import { addressBytes } from './address-codec.ts'
import { littleEndian } from './message.ts'
import type { MessageWriter } from './message-writer.ts'

export const RTM_NEWLINK = 16
export const RTM_DELLINK = 17
export const RTM_GETLINK = 18
export const RTM_NEWADDR = 20
export const RTM_DELADDR = 21
export const RTNLGRP_LINK = 1
export const RTNLGRP_IPV4_IFADDR = 5
export const RTNLGRP_IPV6_IFADDR = 9

const IFLA_IFNAME = 3
const IFLA_LINKINFO = 18
const IFLA_INFO_KIND = 1
const IFA_ADDRESS = 1
const IFA_LOCAL = 2
const IFA_FLAGS = 8
/** The address is ours alone: nobody need be asked whether it is free. */
const IFA_F_NODAD = 2
const AF_INET = 2
const AF_INET6 = 10

export function writeDummy(writer: MessageWriter, name: string): void {
  writer.header(new Uint8Array(16))
  writer.text(IFLA_IFNAME, name)
  const at = writer.open(IFLA_LINKINFO)
  writer.text(IFLA_INFO_KIND, 'dummy')
  writer.close(at)
}

/** For messages about a link that exists: get, delete. */
export function writeLinkName(writer: MessageWriter, name: string): void {
  writer.header(new Uint8Array(16))
  writer.text(IFLA_IFNAME, name)
}

/** A single address (/32, /128) of the interface with that index. */
export function writeAddress(writer: MessageWriter, index: number, ip: string): void {
  const six = familyOf(ip) === 6
  const header = Buffer.alloc(8)
  header[0] = six ? AF_INET6 : AF_INET
  header[1] = six ? 128 : 32
  if (littleEndian) header.writeUInt32LE(index, 4)
  else header.writeUInt32BE(index, 4)
  writer.header(header)
  const bytes = addressBytes(ip)
  writer.raw(IFA_LOCAL, bytes)
  writer.raw(IFA_ADDRESS, bytes)
  if (six) writer.hostU32(IFA_FLAGS, IFA_F_NODAD)
}
