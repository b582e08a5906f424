// A rolling update behind a load balancer that polls the health check ports of two nodes: what its clients see. Policy Local.

import { setTimeout as delay } from 'node:timers/promises'
import type { Family } from '../../src/lib/ip.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { until } from '../support/until.ts'
import { nodeNames, TwoNodes } from './two-nodes.ts'
import { expand } from './web-service.ts'
import { WholeProxy, type WholeProxyOptions } from './whole-proxy.ts'

const healthPort = 31080
const nodePort = 30080
const pollMs = 300
/** Failed polls in a row, and connections since the first of them, after which the balancer leaves a node out. */
const threshold = 3
const fewestLate = 10
const dialMs = 25
const usualLimitMs = 1_000

export interface RollingUpdate extends Pick<WholeProxyOptions, 'mode' | 'program'> {
  /** The annotation sluice/local-drain of the service. */
  readonly drain?: string
  /** After this time without an answer a connection has failed. */
  readonly limitMs?: number
  readonly family?: Family
}

export interface UpdateResult {
  readonly made: number
  /** By what happened to them. */
  readonly failed: Readonly<Record<string, number>>
  /** Connections to a node between the first failed poll and the moment at which the balancer left it out. */
  readonly late: number
  /** True if the health check port of each node failed before the balancer had left it out. */
  readonly toldAtOnce: boolean
  readonly log: string
}

type Endpoint = 'ready' | 'terminating' | 'gone'

function objects(
  { addresses: { any, podIps } }: TwoNodes,
  states: readonly Endpoint[],
  drain: string | undefined,
): readonly Item[] {
  const service = expand(
    {
      service: 'ns1/web',
      type: 'LoadBalancer',
      clusterIP: any === '::' ? 'fd00:30::41' : '172.30.0.41',
      ports: [`http 80/tcp ${nodePort}`],
      externalTrafficPolicy: 'Local',
      healthCheckNodePort: healthPort,
    },
    0,
  ) as unknown as Item & { metadata: { annotations?: Record<string, string> } }
  if (drain !== undefined) service.metadata.annotations = { 'sluice/local-drain': drain }
  const slice = expand({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints: [] }, 1) as unknown as Item
  const endpoints = states.flatMap((state, i) =>
    state === 'gone'
      ? []
      : [
          {
            addresses: [podIps[i]],
            nodeName: nodeNames[i],
            conditions: { ready: state === 'ready', serving: true, terminating: state === 'terminating' },
          },
        ],
  )
  return [service, { ...slice, addressType: any === '::' ? 'IPv6' : 'IPv4', endpoints } as Item]
}

const describeNode = ({ addresses: { nodeIps } }: TwoNodes, i: 0 | 1): Item =>
  ({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: nodeNames[i] },
    spec: {},
    status: { addresses: [{ type: 'InternalIP', address: nodeIps[i] }] },
  }) as Item

/** Replaces the pod of one node after the other, while clients connect through the balancer. */
export async function playRollingUpdate(update: RollingUpdate): Promise<UpdateResult> {
  const { drain, limitMs = usualLimitMs, family = 4, ...program } = update
  const network = await TwoNodes.create(family)
  const api = await WatchedApi.listen(network.client, 8001, network.addresses.clientIps[0])
  api.put(describeNode(network, 0), describeNode(network, 1), ...objects(network, ['ready', 'ready'], drain))
  const proxies: WholeProxy[] = []
  try {
    for (const i of [0, 1] as const) {
      const flags = [`--hostname-override=${nodeNames[i]}`, `--nodeport-addresses=0.0.0.0/0,::/0`]
      proxies.push(await WholeProxy.start({ ...program, network: { node: network.node(i) }, api, flags }))
    }
    for (const proxy of proxies) await proxy.waitUntilSynced()
    const balancer = new Balancer(network, limitMs)
    await until('both nodes are healthy', () => balancer.isHealthy(0) && balancer.isHealthy(1))
    for (const i of [0, 1] as const)
      await replacePod(i, balancer, (states) => api.put(...objects(network, states, drain)))
    return { ...(await balancer.stop()), log: proxies.map(({ log }) => log).join('') }
  } finally {
    for (const proxy of proxies) await proxy.stop('SIGKILL')
    api.close()
    network.close()
  }
}

async function replacePod(i: 0 | 1, balancer: Balancer, set: (states: readonly Endpoint[]) => void): Promise<void> {
  const both = (state: Endpoint): readonly Endpoint[] => (i === 0 ? [state, 'ready'] : ['ready', state])
  set(both('terminating'))
  await delay(100)
  set(both('gone'))
  await until(`the balancer leaves ${nodeNames[i]} out`, () => !balancer.isHealthy(i))
  await delay(300)
  set(both('ready'))
  await until(`the balancer uses ${nodeNames[i]} again`, () => balancer.isHealthy(i))
  await delay(300)
}

/** Polls both health check ports, and opens connections to the node ports of healthy nodes by turns. */
class Balancer {
  readonly #network: TwoNodes
  readonly #limitMs: number
  readonly #healthy = [false, false]
  readonly #misses = [0, 0]
  readonly #lateTo = [0, 0]
  readonly #told: boolean[] = []
  readonly #failed: Record<string, number> = {}
  readonly #answers = new Set<Promise<void>>()
  readonly #timers: NodeJS.Timeout[]
  #made = 0
  #late = 0
  #turn = 0

  constructor(network: TwoNodes, limitMs: number) {
    this.#network = network
    this.#limitMs = limitMs
    this.#timers = [setInterval(() => this.#poll(), pollMs), setInterval(() => this.#dial(), dialMs)]
  }

  isHealthy(i: 0 | 1): boolean {
    return this.#healthy[i] === true
  }

  async stop(): Promise<Omit<UpdateResult, 'log'>> {
    for (const timer of this.#timers) clearInterval(timer)
    await Promise.all(this.#answers)
    const toldAtOnce = this.#told.length === 2 && this.#told.every((one) => one)
    return { made: this.#made, failed: this.#failed, late: this.#late, toldAtOnce }
  }

  #poll(): void {
    for (const i of [0, 1] as const) {
      void this.#network
        .readStatus(this.#network.addresses.nodeIps[i], healthPort, this.#limitMs)
        .then((code) => this.#note(i, code))
    }
  }

  #note(i: 0 | 1, code: number): void {
    if (code === 200) {
      this.#misses[i] = 0
      this.#lateTo[i] = 0
      this.#healthy[i] = true
      return
    }
    this.#misses[i] = (this.#misses[i] ?? 0) + 1
    if (this.#misses[i] < threshold || (this.#lateTo[i] ?? 0) < fewestLate || !this.#healthy[i]) return
    this.#told.push(code === 503)
    this.#healthy[i] = false
  }

  #dial(): void {
    const i = (this.#turn++ % 2) as 0 | 1
    if (!this.#healthy[i]) return
    this.#made++
    if ((this.#misses[i] ?? 0) > 0) {
      this.#late++
      this.#lateTo[i] = (this.#lateTo[i] ?? 0) + 1
    }
    const { nodeIps, podIps } = this.#network.addresses
    const answer = this.#network.ask(nodeIps[i], nodePort, this.#limitMs).then((text) => {
      if (!(podIps as readonly string[]).includes(text)) this.#failed[text] = (this.#failed[text] ?? 0) + 1
      this.#answers.delete(answer)
    })
    this.#answers.add(answer)
  }
}
