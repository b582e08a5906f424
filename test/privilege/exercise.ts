// Has a proxy do everything that it does on a node: first sync, changes of all kinds, repair, new addresses, a lost API server, and all
// that it answers.

import { expect } from 'vitest'
import { timeLimit } from '../lab/vm.ts'
import type { Item, WatchedApi } from '../lab/watched-api.ts'
import { expandObject, nodeName } from '../scenarios/expand.ts'
import type { Json } from '../scenarios/twins.ts'
import { until } from '../support/until.ts'
import type { ConfinedProxy } from './confined-proxy.ts'

/** What the exercise needs of a network with a node. */
export interface Place {
  readonly api: WatchedApi
  /** Runs a shell command on the node. */
  run(command: string): Promise<string>
  /** True if a client's connection is answered by a pod. */
  isServed(ip: string, port: number): Promise<boolean>
  readonly pods: readonly string[]
  /** The port at which pods answer. */
  readonly podPort: number
  readonly nodeIp: string
  /** Removes rules, as someone who meddles does. */
  readonly damage: string
}

const objects = (...values: Json[]): readonly Item[] =>
  values.map((value, i) => expandObject(value, 700 + i, 4)) as unknown as readonly Item[]

/** Services with every feature that needs something of the system: health ports, affinity, UDP, source ranges. */
const special = ({ pods, podPort }: Place): readonly Item[] =>
  objects(
    {
      service: 'ns2/local',
      type: 'LoadBalancer',
      clusterIP: '172.30.9.1',
      ports: ['http 80/tcp 30090'],
      lb: ['203.0.113.9'],
      externalTrafficPolicy: 'Local',
      healthCheckNodePort: 30091,
      loadBalancerSourceRanges: ['192.168.0.0/16'],
    },
    { slice: 'ns2/local', ports: [`http ${podPort}/tcp`], endpoints: [`${pods[0]} local`] },
    { service: 'ns2/sticky', clusterIP: '172.30.9.2', ports: ['http 80/tcp'], affinity: 60 },
    { slice: 'ns2/sticky', ports: [`http ${podPort}/tcp`], endpoints: pods.map((ip) => `${ip} local`) },
    { service: 'ns2/udp', type: 'NodePort', clusterIP: '172.30.9.3', ports: ['dns 53/udp 30053'] },
    { slice: 'ns2/udp', ports: ['dns 5353/udp'], endpoints: [`${pods[0]} local`] },
    { service: 'ns2/none', clusterIP: '172.30.9.4', externalIPs: ['203.0.113.10'], ports: ['http 80/tcp'] },
  )

const plain = ({ pods, podPort }: Place, ip: string): readonly Item[] =>
  objects(
    { service: `ns3/${ip.replaceAll('.', '-')}`, clusterIP: ip, ports: ['http 80/tcp'] },
    { slice: `ns3/${ip.replaceAll('.', '-')}`, ports: [`http ${podPort}/tcp`], endpoints: [`${pods[0]} local`] },
  )

export async function exercise(proxy: ConfinedProxy, place: Place): Promise<void> {
  const { api, pods } = place
  const served = (ip: string, port = 80) =>
    proxy.unlessItEnds(
      until(`${ip} answers`, () => place.isServed(ip, port), { limitMs: timeLimit(60_000), everyMs: 100 }),
    )
  await proxy.waitUntilSynced()
  api.put(...special(place), ...plain(place, '172.30.9.20'))
  await served('172.30.9.2')
  await served('172.30.9.20')
  const healthCheck = `curl -s -m 60 http://${place.nodeIp}:30091/`
  await until('the health check port answers', async () =>
    (await place.run(`${healthCheck} || true`)).includes('local'),
  )
  // A changed endpoint of a UDP service makes the proxy look for stale flows.
  api.put(...objects({ slice: 'ns2/udp', ports: ['dns 5353/udp'], endpoints: [`${pods[1]} local`] }))
  api.drop(...plain(place, '172.30.9.20'), ...objects({ service: 'ns2/none' }))
  await place.run(place.damage)
  await place.run('ip addr add 10.99.3.3/32 dev lo')
  await served('172.30.9.2')
  api.cut()
  api.put(...plain(place, '172.30.9.21'))
  await served('172.30.9.21')
  proxy.child.kill('SIGUSR1')
  expect(await proxy.get(10256, '/healthz')).toContain('lastUpdated')
  expect(await proxy.get(10249, '/configz')).toContain('metricsBindAddress')
  expect(await proxy.get(10249, '/debug/pprof/profile?seconds=1')).not.toBe('')
  const socket = `/proc/${proxy.child.pid}/root/run/sluice/${nodeName}.sock`
  expect(await place.run(`curl -s -m 60 --unix-socket ${socket} http://admin/v1/summary`)).toContain('{')
}
