// Clients that open connections while a story goes on: in a pod, on a node and outside of the cluster.

import { spawn } from 'node:child_process'
import { bundleProgram } from '../support/bundle-program.ts'
import { until } from '../support/until.ts'
import type { NodeMachine } from './network.ts'
import type { RealCluster } from './real-cluster.ts'

export interface ProbeResult {
  readonly target: string
  readonly made: number
  readonly failures: readonly { readonly at: number; readonly why: string }[]
}

export interface Load {
  /** Ends the load and returns what it counted. */
  end(): Promise<readonly ProbeResult[]>
}

export interface Client {
  readonly name: string
  /** The words that bring a command to where the client is. */
  readonly prefix: readonly string[]
  /** What it opens connections to: NAME=URL. */
  readonly targets: readonly string[]
}

/** Starts a process per client; each opens a connection to each of its targets every `everyMs`. */
export async function startLoad(clients: readonly Client[], everyMs: number): Promise<Load> {
  const bundle = await bundleProgram(new URL('probe.worker.ts', import.meta.url).pathname)
  const running = await Promise.all(clients.map((client) => startClient(client, bundle.file, everyMs)))
  return {
    async end() {
      const results = await Promise.all(running.map((finish) => finish()))
      bundle.remove()
      return results.flat()
    },
  }
}

async function startClient({ name, prefix, targets }: Client, file: string, everyMs: number) {
  const [enter = '', ...args] = [...prefix, process.execPath, file, String(everyMs), ...targets]
  const child = spawn(enter, args, { stdio: ['pipe', 'pipe', 'inherit'] })
  let output = ''
  child.stdout.on('data', (chunk) => {
    output += chunk
  })
  const closed = new Promise((resolve) => child.once('close', resolve))
  await until(`client ${name}`, () => output.startsWith('ready\n'))
  return async (): Promise<readonly ProbeResult[]> => {
    child.stdin.end()
    await closed
    const { results } = JSON.parse(output.slice('ready\n'.length)) as { readonly results: readonly ProbeResult[] }
    return results.map((result) => ({ ...result, target: `${name}: ${result.target}` }))
  }
}

/** The words that bring a command into the network namespace of a pod of this address. */
export async function enterPod(node: NodeMachine, address: string): Promise<readonly string[]> {
  const script = `for path in /run/netns/*; do nsenter --net=$path ip -o addr | grep -q ' ${address}/' && echo $path; done; true`
  const path = await until(
    `the namespace of ${address}`,
    async () => (await node.run(['bash', '-c', script])).trim() || undefined,
  )
  return [...node.prefix, 'nsenter', `--net=${path}`, '--']
}

/** A pod on the node that does nothing: a client runs in its network namespace. */
export async function startClientPod(
  cluster: RealCluster,
  node: NodeMachine,
  namespace: string,
): Promise<readonly string[]> {
  const name = `client-${node.name}`
  const container = { name: 'pause', image: cluster.images.agnhost[0], args: ['pause'] }
  const spec = {
    nodeName: node.name,
    terminationGracePeriodSeconds: 0,
    containers: [container],
    tolerations: [{ operator: 'Exists' }],
  }
  await cluster.apply(JSON.stringify({ apiVersion: 'v1', kind: 'Pod', metadata: { name, namespace }, spec }))
  await cluster.kubectl(['-n', namespace, 'wait', '--for=condition=Ready', `pod/${name}`, '--timeout=120s'], {
    limitMs: 130_000,
  })
  const address = await cluster.kubectl(['-n', namespace, 'get', 'pod', name, '-o', 'jsonpath={.status.podIP}'])
  return await enterPod(node, address)
}
