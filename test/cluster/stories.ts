// What happens to connections while something happens to the cluster. A story counts the connections that clients made and that failed.

import { setTimeout as delay } from 'node:timers/promises'
import { until } from '../support/until.ts'
import { program } from './cache.ts'
import { fleetStory } from './fleet-story.ts'
import { type Client, type ProbeResult, startLoad } from './probes.ts'
import { applyKubeProxy, installChart, installProxy, type Mode, type ProxyName, waitForProxy } from './proxies.ts'
import type { RealCluster } from './real-cluster.ts'
import { createWorkload, namespace, type Workload } from './workload.ts'

export interface StoryContext {
  readonly cluster: RealCluster
  readonly workload: Workload
  /** The proxy that runs, and its mode. */
  readonly proxy: ProxyName
  readonly mode: Mode
  /** Path of Sluice's own executable. */
  readonly executable: string
}

export interface Story {
  readonly name: string
  /** How many web servers there are; 6 if it does not matter. */
  readonly replicas?: number
  /** The clients, if they are not those of the workload. */
  clients?(context: StoryContext): readonly Client[]
  run(context: StoryContext): Promise<void>
  /** Called when no connections are counted any more. */
  restore?(context: StoryContext): Promise<void>
}

export interface StoryResult {
  readonly name: string
  readonly proxy: ProxyName
  readonly mode: Mode
  readonly date: string
  readonly made: number
  readonly failed: number
  /** Seconds between the first and the last failure. */
  readonly span: number
  readonly reasons: Readonly<Record<string, number>>
}

const settle = () => delay(5_000)
const kubeSystem = (cluster: RealCluster, ...args: string[]) =>
  cluster.kubectl(['-n', 'kube-system', ...args], { limitMs: 320_000 })

const stories: readonly Story[] = [
  {
    name: 'the API server is killed and comes back after 10 s',
    async run({ cluster }) {
      await cluster.plane.stopApiServer('SIGKILL')
      await delay(10_000)
      await cluster.plane.startApiServer()
      await settle()
    },
  },
  {
    name: 'etcd is compacted, the API server restarts, and endpoints change',
    async run({ cluster, workload }) {
      await cluster.plane.stopApiServer('SIGKILL')
      await cluster.plane.compact()
      await cluster.plane.startApiServer()
      for (const replicas of [9, 6]) {
        await workload.scale(replicas)
        await workload.waitForRollout()
        await settle()
      }
    },
  },
  {
    name: 'a node is drained and comes back',
    async run({ cluster, workload }) {
      const node = cluster.nodes.at(-1)?.name as string
      const flags = ['--ignore-daemonsets', '--delete-emptydir-data', '--force', '--timeout=180s']
      await cluster.kubectl(['drain', node, ...flags], { limitMs: 200_000 })
      await workload.waitForRollout()
      await cluster.kubectl(['uncordon', node])
      await settle()
    },
  },
  {
    name: 'a node is cut off, and comes back after it was given up',
    async run({ cluster }) {
      const node = cluster.nodes.at(-1)?.name as string
      const port = `port${cluster.nodes.length}`
      await cluster.fabric.run(['ip', 'link', 'set', port, 'down'])
      const status = ['get', 'node', node, '-o', 'jsonpath={.status.conditions[?(@.type=="Ready")].status}']
      const is = (wanted: string) => async () => (await cluster.kubectl(status)) === wanted
      await until(`${node} is given up`, is('Unknown'), { limitMs: 120_000, everyMs: 500 })
      await settle()
      await cluster.fabric.run(['ip', 'link', 'set', port, 'up'])
      await cluster.fabric.run(['ip', 'link', 'set', port, 'master', 'br0'])
      await until(`${node} is back`, is('True'), { limitMs: 120_000, everyMs: 500 })
      await settle()
    },
  },
  {
    name: 'CoreDNS rolls while names are resolved',
    clients: ({ workload }) =>
      workload.clients
        .filter(({ name }) => name !== 'outside')
        .map((client) => ({ ...client, targets: ['DNS=dns://10.96.0.10/kubernetes.default.svc.cluster.local'] })),
    async run({ cluster }) {
      for (let turn = 0; turn < 2; turn++) {
        await kubeSystem(cluster, 'rollout', 'restart', 'deployment/coredns')
        await kubeSystem(cluster, 'rollout', 'status', 'deployment/coredns', '--timeout=300s')
      }
      await delay(12_000) // the old pods end
    },
  },
  {
    name: 'a Deployment of 50 pods rolls',
    replicas: 50,
    async run({ cluster, workload }) {
      await cluster.kubectl(['-n', namespace, 'rollout', 'restart', 'deployment/web'])
      await workload.waitForRollout()
      await delay(20_000) // the old pods end
    },
  },
  {
    name: 'the proxy is restarted on all nodes',
    async run({ cluster, proxy }) {
      await kubeSystem(cluster, 'rollout', 'restart', `daemonset/${proxy}`)
      await waitForProxy(cluster, proxy)
      await settle()
    },
  },
  {
    name: 'the image of the proxy changes',
    async run({ cluster, proxy, mode }) {
      const old = proxy === 'sluice' ? sluiceImage(mode) : cluster.images.kubeProxy
      const next = `${old}-next`
      for (const node of cluster.nodes)
        await node.run([program('ctr'), '-n', 'k8s.io', 'images', 'tag', '--force', old, next])
      for (const image of [next, old]) {
        if (proxy === 'sluice') await installChart(cluster, { mode, image: { tag: image.split(':').at(-1) } })
        else await kubeSystem(cluster, 'set', 'image', 'daemonset/kube-proxy', `kube-proxy=${image}`)
        await waitForProxy(cluster, proxy)
      }
      await settle()
    },
  },
  {
    name: 'all rules of a node are flushed',
    async run({ cluster, mode }) {
      const script =
        mode === 'nftables' ? 'nft flush ruleset' : 'iptables -t nat -F; iptables -F; ip6tables -t nat -F; ip6tables -F'
      await cluster.nodes[0]?.run(['bash', '-c', script])
      await delay(40_000)
    },
  },
]

/** A change from the mode of the setting to another one, and back. */
const changeMode = (other: Mode): Story => ({
  name: `the mode changes to ${other}, and back`,
  async run({ cluster, proxy, mode }) {
    for (const next of [other, mode]) {
      await installProxy(cluster, proxy, next)
      await settle()
    }
  },
})

/** Begins and ends with kube-proxy; what is counted is the change from its mode to another one of Sluice. */
const takeOverInMode = (other: Mode): Story => ({
  name: `kube-proxy is replaced by Sluice in ${other} mode`,
  async run({ cluster }) {
    await applyKubeProxy(cluster, other, sluiceImage(other))
    await waitForProxy(cluster, 'kube-proxy')
    await settle()
  },
  async restore({ cluster, mode }) {
    await installProxy(cluster, 'kube-proxy', mode)
  },
})

/** Replaces kube-proxy as on kubeadm, by its image alone, and puts it back. It begins and ends with kube-proxy. */
const takeOver: Story = {
  name: 'kube-proxy is replaced by Sluice and put back (kubectl set image, rollout undo)',
  async run({ cluster, mode }) {
    await kubeSystem(cluster, 'set', 'image', 'daemonset/kube-proxy', `kube-proxy=${sluiceImage(mode)}`)
    await waitForProxy(cluster, 'kube-proxy')
    await settle()
    await kubeSystem(cluster, 'rollout', 'undo', 'daemonset/kube-proxy')
    await waitForProxy(cluster, 'kube-proxy')
    await settle()
  },
}

const modesOf: Readonly<Record<ProxyName, readonly Mode[]>> = {
  sluice: ['nftables', 'iptables', 'userspace'],
  'kube-proxy': ['nftables', 'iptables'],
}

/** The stories of a proxy in a mode. Those that replace kube-proxy begin with it, but they are about Sluice. */
export function listStories(proxy: ProxyName, mode: Mode): readonly (readonly [Story, ProxyName])[] {
  const others = (name: ProxyName) => modesOf[name].filter((other) => other !== mode)
  const own = [...stories, ...others(proxy).map(changeMode)].map((story) => [story, proxy] as const)
  if (proxy === 'sluice') return [...own, [fleetStory, proxy]]
  const replacing = [takeOver, ...others('sluice').map(takeOverInMode)]
  return [...own, ...replacing.map((story) => [story, 'sluice'] as const)]
}

const sluiceImage = (mode: Mode): string => `docker.io/library/sluice:${mode === 'nftables' ? 'nftables-' : ''}0.1.0`

export async function playStory(story: Story, setting: Omit<StoryContext, 'workload'>): Promise<StoryResult> {
  const workload = await createWorkload(setting.cluster, story.replicas ?? 6)
  const context = { ...setting, workload }
  const load = await startLoad(story.clients?.(context) ?? workload.clients, 100)
  await delay(2_000)
  let results: readonly ProbeResult[] = []
  try {
    await story.run(context)
  } finally {
    results = await load.end()
  }
  await story.restore?.(context)
  return summarise(story.name, setting, results)
}

function summarise(
  name: string,
  { proxy, mode }: Pick<StoryContext, 'proxy' | 'mode'>,
  results: readonly ProbeResult[],
): StoryResult {
  const failures = results.flatMap((result) =>
    result.failures.map((failure) => ({ ...failure, target: result.target })),
  )
  const times = failures.map(({ at }) => at)
  const reasons: Record<string, number> = {}
  for (const { target, why } of failures) reasons[`${target}: ${why}`] = (reasons[`${target}: ${why}`] ?? 0) + 1
  return {
    name,
    proxy,
    mode,
    date: new Date().toISOString().slice(0, 10),
    made: results.reduce((sum, { made }) => sum + made, 0),
    failed: failures.length,
    span: times.length === 0 ? 0 : Math.round((Math.max(...times) - Math.min(...times)) / 100) / 10,
    reasons,
  }
}
