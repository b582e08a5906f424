// Stands in for the kubelets of a test cluster, for exec alone: kube-apiserver connects to it as to a kubelet, and it runs the program of
// this checkout beside the proxy instead of in its container. Everything before the kubelet is real; real kubelets are in test/cluster.

import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import { type ExecProgram, serveExec } from '../support/exec-endpoint.ts'
import type { Authority } from './cluster-certificates.ts'

const SLUICE = fileURLToPath(new URL('../../bin/sluice', import.meta.url))

export interface KubeletStandIn {
  readonly port: number
  /** The paths and commands that were executed. */
  readonly executed: string[]
  stop(): Promise<void>
}

/** `environments` has the variables of each pod's container. A pod that is not there has no program `sluice`. */
export async function startKubeletStandIn(
  authority: Authority,
  environments: ReadonlyMap<string, NodeJS.ProcessEnv>,
): Promise<KubeletStandIn> {
  const { certificate, key } = await authority.issue('kubelet', '/O=system:nodes/CN=system:node', ['127.0.0.1'])
  const executed: string[] = []
  const server = createServer({ cert: readFileSync(certificate), key: readFileSync(key) })
  const streams = new Set<{ destroy(): void }>()
  server.on('upgrade', (request, stream) => {
    streams.add(stream)
    stream.on('close', () => streams.delete(stream))
    serveExec(request, stream, (command, path) => {
      executed.push(`${path} ${command.join(' ')}`)
      const [, pod = ''] = /^\/exec\/kube-system\/([^/]+)\/kube-proxy$/.exec(path) ?? []
      const env = environments.get(pod)
      return env === undefined || command[0] !== 'sluice' ? undefined : start(command.slice(1), env)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    port: (server.address() as AddressInfo).port,
    executed,
    stop() {
      for (const stream of streams) stream.destroy()
      return new Promise((resolve) => server.close(() => resolve()))
    },
  }
}

function start(args: readonly string[], env: NodeJS.ProcessEnv): ExecProgram {
  const child = spawn(SLUICE, args, { env: { ...process.env, ...env }, stdio: ['pipe', 'pipe', 'pipe'] })
  const ended = new Promise<string>((resolve) =>
    child.on('exit', (code) => resolve(code === 0 ? '' : `command terminated with exit code ${code}`)),
  )
  child.stdin.on('error', () => {})
  return { input: child.stdin, output: child.stdout, ended, kill: () => child.kill('SIGKILL') }
}
