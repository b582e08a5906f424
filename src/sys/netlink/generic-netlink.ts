// Generic netlink: a family has a name, and a number that the kernel assigns when it loads the family's module.

import { AttributeReader } from './message.ts'
import { genericHeader, type MessageWriter, writeGenericHeader } from './message-writer.ts'
import { isRefusedWith } from './netlink-errors.ts'
import type { NetlinkSocket, Wait } from './socket.ts'

const GENL_ID_CTRL = 0x10
const CTRL_CMD_GETFAMILY = 3
/** CTRL_ATTR_*. */
const CTRL_ATTR = { FAMILY_ID: 1, FAMILY_NAME: 2 } as const

/** Finds the message type of a family; undefined if this kernel has no such family. The request loads its module where that is allowed. */
export async function findFamily(socket: NetlinkSocket, name: string, wait: Wait = {}): Promise<number | undefined> {
  const reader = new AttributeReader()
  let id: number | undefined
  const body = (writer: MessageWriter) => writeFamilyRequest(writer, name)
  try {
    await socket.request(
      { op: `look up the generic netlink family ${name}`, type: GENL_ID_CTRL, body },
      (message) => {
        message.attributes(genericHeader, reader)
        while (reader.next()) if (reader.type === CTRL_ATTR.FAMILY_ID) id = reader.hostU16()
      },
      wait,
    )
  } catch (error) {
    if (isRefusedWith(error, 'ENOENT')) return undefined
    throw error
  }
  return id
}

export function writeFamilyRequest(writer: MessageWriter, name: string): void {
  writeGenericHeader(writer, CTRL_CMD_GETFAMILY, 1)
  writer.text(CTRL_ATTR.FAMILY_NAME, name)
}
