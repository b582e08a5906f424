// A proxy in userspace mode that is stopped while its first rules are written: the kernel must serve afterwards all the same.

import { afterEach, expect, it } from 'vitest'
import { ApiNode } from './api-node.ts'
import { podIps } from './node-network.ts'

let node: ApiNode | undefined
afterEach(() => node?.close())

/** The stop hits the write that was not confirmed yet about once in eight times. */
const times = 10

it('leaves rules that lead to pods, however early it is stopped', async () => {
  for (let i = 0; i < times; i++) {
    node = await ApiNode.create('userspace')
    await node.start()
    await node.stop()
    const { stdout } = await node.network.node.exec('iptables-nft-save', ['-t', 'nat'])
    const targets = [...stdout.matchAll(/-d 172\.30\.0\.80\/32 .*--to-destination ([\d.]+):/g)].map((match) => match[1])
    expect(targets.length).toBeGreaterThan(0)
    expect(targets.filter((ip) => !(podIps as readonly (string | undefined)[]).includes(ip))).toEqual([])
    await node.close()
    node = undefined
  }
})
