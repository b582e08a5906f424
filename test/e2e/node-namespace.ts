// A network namespace as the node: the proxy runs in it, its rules stay in it, and an agent makes connections in it for the test.

import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { get } from 'node:http'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { until } from '../support/until.ts'
import { startChild } from './child.ts'

const run = promisify(execFile)
const AGENT = fileURLToPath(new URL('node-agent.worker.ts', import.meta.url))
const API_PORT = 6443

export interface NodeNamespace {
  /** Words before a program that run it in the namespace. */
  readonly enter: readonly string[]
  /** URL of the API server from inside, through the gate. */
  readonly server: string
  /** Connects from the node. Resolves with the answer of the endpoint, an error code, or `timeout`. */
  dial(host: string, port: number, limitMs?: number): Promise<string>
  fetch(url: string): Promise<{ status: number; body: string }>
  stop(): Promise<void>
}

export interface NodeNamespaceOptions {
  /** Distinguishes several nodes of one test process; '' for a single one. */
  readonly suffix?: string
  /** Directory of the socket files and the log. */
  readonly directory: string
  /** Socket file of the gate in front of the API server. */
  readonly gate: string
  readonly nodeIps: readonly string[]
  readonly endpointIps: readonly string[]
  readonly endpointPort: number
}

export async function startNodeNamespace(options: NodeNamespaceOptions): Promise<NodeNamespace> {
  const name = `sluice-e2e-${process.pid}${options.suffix ?? ''}`
  const remove = () => run('ip', ['netns', 'delete', name])
  await run('ip', ['netns', 'add', name])
  try {
    await addInterfaces(name, options)
    return await startAgent(name, options, remove)
  } catch (error) {
    await remove()
    throw error
  }
}

async function addInterfaces(name: string, { nodeIps, endpointIps }: NodeNamespaceOptions): Promise<void> {
  const ip = (...args: string[]) => run('ip', ['-netns', name, ...args])
  await ip('link', 'set', 'lo', 'up')
  // Both ends are inside: the node needs a route to cluster IPs, and nothing may leave the namespace.
  await ip('link', 'add', 'uplink', 'type', 'veth', 'peer', 'name', 'nowhere')
  await ip('link', 'set', 'uplink', 'up')
  await ip('link', 'set', 'nowhere', 'up')
  for (const address of nodeIps) await ip('address', 'add', withLength(address), 'dev', 'uplink', 'nodad')
  for (const address of endpointIps) await ip('address', 'add', withLength(address), 'dev', 'lo', 'nodad')
  await ip('route', 'add', 'default', 'dev', 'uplink')
  await ip('-6', 'route', 'add', 'default', 'dev', 'uplink')
}

async function startAgent(
  name: string,
  options: NodeNamespaceOptions,
  remove: () => Promise<unknown>,
): Promise<NodeNamespace> {
  const enter = ['ip', 'netns', 'exec', name]
  const control = join(options.directory, 'agent.sock')
  const agent = startChild({
    wrapper: enter,
    program: process.execPath,
    args: ['--import', 'tsx', AGENT, control, options.gate, String(API_PORT), String(options.endpointPort)],
    log: join(options.directory, 'agent.log'),
  })
  try {
    await until('the agent listens', () => existsSync(control))
  } catch (error) {
    const output = agent.output()
    await agent.end('SIGKILL')
    throw new Error(`the agent in the namespace did not start: ${output}`, { cause: error })
  }
  return {
    enter,
    server: `https://127.0.0.1:${API_PORT}`,
    dial: (host, port, limitMs = 1_000) => command(control, `/dial?host=${host}&port=${port}&limit=${limitMs}`),
    async fetch(url) {
      const text = await command(control, `/fetch?url=${encodeURIComponent(url)}`)
      const end = text.indexOf('\n')
      return { status: Number(text.slice(0, end)), body: text.slice(end + 1) }
    },
    async stop() {
      await agent.end('SIGKILL')
      await remove()
    },
  }
}

function withLength(address: string): string {
  return address.includes(':') ? `${address}/128` : `${address}/32`
}

function command(socketPath: string, path: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const outgoing = get({ socketPath, path, agent: false, timeout: 20_000 }, (incoming) => {
      let body = ''
      incoming.setEncoding('utf8')
      incoming.on('data', (chunk) => {
        body += chunk
      })
      incoming.on('error', reject)
      incoming.on('end', () => (incoming.statusCode === 200 ? resolve(body) : reject(new Error(body))))
    })
    outgoing.on('timeout', () => outgoing.destroy(new Error('the agent does not answer')))
    outgoing.on('error', reject)
  })
}
