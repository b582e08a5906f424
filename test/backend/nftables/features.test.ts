import { describe, expect, it } from 'vitest'
import { FeatureProbe } from '../../../src/backend/nftables/features.ts'
import { ProxyError } from '../../../src/lib/errors.ts'
import { EEXIST, EINVAL, ENOENT, EPERM } from '../../../src/sys/errno.ts'
import { MessageReader } from '../../../src/sys/netlink/message.ts'
import type { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'
import { messageTypes } from '../../../src/sys/netlink/nft/nft-types.ts'
import type { Nftables } from '../../../src/sys/netlink/nft/nftables.ts'

/** Makes a kernel that refuses the nth message of a type. */
const makeRefusing = (type: number, nth: number, errno: number) =>
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
    failure: () => new ProxyError('netlink', 'the kernel refuses'),
  }) as unknown as Nftables

describe('a kernel that lacks something', () => {
  it.each([
    ['look-up of routes in rules (CONFIG_NFT_FIB_IPV4, CONFIG_NFT_FIB_IPV6)', messageTypes.rule.add, 1, ENOENT],
    ['masquerading (CONFIG_NFT_MASQ)', messageTypes.rule.add, 4, ENOENT],
    ['nat chains', messageTypes.chain.add, 1, ENOENT],
    ['sets of the shape address . protocol . port . range', messageTypes.set.add, 2, EEXIST],
  ])('is reported with the missing part: %s', async (part, type, nth, errno) => {
    const finding = new FeatureProbe().find(makeRefusing(type, nth, errno), 4)
    await expect(finding).rejects.toThrow(`this kernel cannot do nftables mode: it has no ${part} `)
  })

  it('is not reported if the kernel refuses what is invalid on purpose, and is if it refuses another rule as invalid', async () => {
    const refuse = (nth: number) => new FeatureProbe().find(makeRefusing(messageTypes.rule.add, nth, EINVAL), 4)
    for (const nth of [0, 2, 4]) await expect(refuse(nth)).resolves.toBeDefined()
    await expect(refuse(1)).rejects.toThrow('look-up of routes in rules')
  })

  it('asks for the capability if only the permission is missing', async () => {
    await expect(new FeatureProbe().find(makeRefusing(messageTypes.table.add, 0, EPERM), 6)).rejects.toThrow(
      'CAP_NET_ADMIN is missing',
    )
  })
})
