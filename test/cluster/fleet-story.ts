// The story in which all nodes are looked at through the API server, with real kubelets: reports, and questions by exec in the pods.

import { until } from '../support/until.ts'
import { installChart, waitForProxy } from './proxies.ts'
import type { RealCluster } from './real-cluster.ts'
import type { Story } from './stories.ts'

interface Answer {
  readonly nodes: readonly { readonly node: string; readonly state: string }[]
}

export const fleetStory: Story = {
  name: 'all nodes are looked at through the API server',
  async run({ cluster, mode, proxy, executable }) {
    if (proxy !== 'sluice') return
    await installChart(cluster, { mode, fleet: { enabled: true, interval: '5s' } })
    await waitForProxy(cluster, proxy)
    let last = ''
    const areEqual = async () => {
      last = await runSluice(cluster, [executable, 'nodes', '-o', 'json']).catch((error: Error) => error.message)
      const { nodes } = JSON.parse(last) as Answer
      return nodes.length === cluster.nodes.length && nodes.every(({ state }) => state === 'ok')
    }
    await until('all nodes report the same', areEqual, { limitMs: 120_000, everyMs: 2_000 }).catch((error: Error) => {
      throw new Error(`${error.message}; last: ${last.slice(0, 2_000)}`)
    })
    for (const { name } of cluster.nodes) {
      const status = await runSluice(cluster, [executable, 'status', '--node', name, '-o', 'json'])
      if (JSON.parse(status).node !== name)
        throw new Error(`another node answered for ${name}: ${status.slice(0, 500)}`)
      const explained = await runSluice(cluster, [executable, 'explain', 'default/kubernetes', '--node', name])
      if (!explained.includes(`on ${name}, mode ${mode}`)) throw new Error(`no explanation for ${name}: ${explained}`)
    }
    console.log(await runSluice(cluster, [executable, 'nodes']))
    await installChart(cluster, { mode })
    await waitForProxy(cluster, proxy)
  },
}

const runSluice = (cluster: RealCluster, command: readonly string[]): Promise<string> =>
  cluster.fabric.run(['env', `KUBECONFIG=${cluster.plane.kubeconfig}`, ...command], { limitMs: 60_000 })
