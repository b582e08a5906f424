import { describe, expect, it } from 'vitest'
import { findFeatures } from '../../../src/backend/nftables/features.ts'
import { ProxyError } from '../../../src/lib/errors.ts'
import { EEXIST, ENOENT, EPERM } from '../../../src/sys/errno.ts'
import { MessageReader } from '../../../src/sys/netlink/message.ts'
import type { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'
import { message } from '../../../src/sys/netlink/nft/nft-types.ts'
import type { Nftables } from '../../../src/sys/netlink/nft/nftables.ts'

/** A kernel that refuses the nth message of a kind. */
const refusing = (type: number, nth: number, errno: number) =>
  ({
    async commit(writer: MessageWriter) {
      const reader = new MessageReader(Buffer.from(writer.toBytes()))
      const failures = []
      let seen = 0
      while (reader.next()) {
        if (reader.type === type && seen++ === nth) failures.push({ errno, sequence: reader.sequence })
      }
      return { failures, overflow: false }
    },
    failure: () => new ProxyError('netlink', 'the kernel said no'),
  }) as unknown as Nftables

describe('a kernel that lacks something', () => {
  it.each([
    ['look-up of routes in rules (CONFIG_NFT_FIB_IPV4, CONFIG_NFT_FIB_IPV6)', message.rule.add, 1, ENOENT],
    ['masquerading (CONFIG_NFT_MASQ)', message.rule.add, 4, ENOENT],
    ['nat chains', message.chain.add, 1, ENOENT],
    ['sets of the shape address . protocol . port . range', message.set.add, 2, EEXIST],
  ])('is told so: %s', async (part, type, nth, errno) => {
    const finding = findFeatures(refusing(type, nth, errno), 4)
    await expect(finding).rejects.toThrow(`this kernel cannot do nftables mode: it has no ${part} `)
  })

  it('or only the right to use it', async () => {
    await expect(findFeatures(refusing(message.table.add, 0, EPERM), 6)).rejects.toThrow('CAP_NET_ADMIN is missing')
  })
})
