// Gives up root's privileges, asks nftables for its generation, and prints the error.

import { NetlinkSocket } from '../../src/sys/netlink/socket.ts'

const GETGEN = 0xa10
process.setuid?.(65534)
const socket = new NetlinkSocket({ protocol: 'netfilter', purpose: 'nftables' })
await socket
  .request({ op: 'read', type: GETGEN, body: (writer) => writer.netfilter(0) })
  .catch((error: Error) => process.stdout.write(error.message))
socket.close()
