// The faults of a chaos run. None of them takes a packet of the untouched service away by itself.

import { spawnSync } from 'node:child_process'
import { rmSync } from 'node:fs'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FaultyProxy } from '../kernel/faulty-proxy.ts'
import type { NodeNetwork } from '../kernel/node-network.ts'
import type { WatchedApi } from '../lab/watched-api.ts'
import type { Prober } from './prober.ts'
import type { Random } from './random.ts'

export interface ChaosWorld {
  readonly network: NodeNetwork
  readonly api: WatchedApi
  readonly proxy: FaultyProxy
  readonly prober: Prober
  readonly random: Random
  /** A small file system, which has the log of the proxy. */
  readonly disk: string
}

const garbage = [
  '',
  'null',
  '{',
  '[]',
  '"',
  '{"type":"ADDED"}',
  '{"type":"ADDED","object":null}',
  '{"type":"X","object":{}}',
  '{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}',
  '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"x"}}}',
  `{"type":"MODIFIED","object":${'['.repeat(3000)}`,
]

/** The stopped process does not read the notifications of these addresses, and its buffers are small: the kernel reports ENOBUFS. */
async function floodListeners({ network, proxy }: ChaosWorld): Promise<void> {
  await proxy.order({ do: 'shrink buffers' })
  const addresses = Array.from({ length: 400 }, (_, i) => `192.0.2.${i & 127}/32 dev flood`)
  const input = [
    'link add flood type dummy',
    ...addresses.flatMap((one) => [`addr add ${one}`, `addr del ${one}`]),
    'link del flood',
  ].join('\n')
  await proxy.stopDuring(() => network.node.exec('ip', ['-force', '-batch', '-'], { input }))
}

async function fillDisk({ disk, random }: ChaosWorld): Promise<void> {
  const filler = join(disk, 'filler')
  spawnSync('dd', ['if=/dev/zero', `of=${filler}`, 'bs=1M'], { stdio: 'ignore' })
  await sleep(random.between(200, 3000))
  rmSync(filler, { force: true })
}

/** Connections to the metrics port that send half a request, or nothing. */
async function crowdListener({ network, random }: ChaosWorld): Promise<void> {
  const crowd = Array.from({ length: 300 }, () => {
    const socket = new Socket({ fd: network.node.openSocket('tcp', '127.0.0.1', 0) })
    socket.on('error', () => undefined)
    socket.connect({ host: '127.0.0.1', port: 10_249 }, () => {
      if (random.chance(0.5)) socket.write('GET /metrics HTTP/1.1\r\nHost: ')
    })
    return socket
  })
  await sleep(random.between(200, 2000))
  for (const socket of crowd) socket.destroy()
}

/** Lowers the limit of open files below what is open already. */
async function limitFiles({ proxy, random }: ChaosWorld): Promise<void> {
  const limit = (count: number) => spawnSync('prlimit', ['--pid', String(proxy.pid), `--nofile=${count}:`])
  limit(20)
  await sleep(random.between(200, 3000))
  limit(1024)
}

const days = 24 * 3600 * 1000

type Fault = (world: ChaosWorld) => Promise<unknown>

export const faults: Readonly<Record<string, Fault>> = {
  'API connections cut': async ({ api }) => api.cut(),
  'API server down': ({ api, random }) => api.downDuring(() => sleep(random.between(100, 3000))),
  'garbage in watches': async ({ api, random }) => api.send(random.choose(garbage)),
  stopped: ({ proxy, random }) => proxy.stopDuring(() => sleep(random.between(200, 4000))),
  'netlink sockets lost': ({ proxy, random }) => proxy.order({ do: 'lose sockets', share: random.next() }),
  'notifications lost': floodListeners,
  'clock stepped': ({ proxy, random }) =>
    proxy.order({ do: 'step clock', ms: random.between(-4000, 4000) * days * random.next() }),
  suspended: ({ proxy, random }) =>
    proxy
      .stopDuring(() => sleep(random.between(500, 2000)))
      .then(() => proxy.order({ do: 'step clock', ms: 8 * 3600_000 })),
  'disk full': fillDisk,
  'files limited': limitFiles,
  'listener crowded': crowdListener,
  'conntrack flushed': ({ network, prober }) => prober.between(() => network.node.exec('conntrack', ['-F'])),
  'interface added and removed': ({ network }) =>
    network.run(
      'ip link add noise type veth peer name noise2 && ip addr add 192.0.2.177/32 dev noise && ip link del noise',
    ),
  'foreign rules': ({ network }) =>
    network.run('nft add table ip noise && nft add chain ip noise c && nft delete table ip noise'),
}
