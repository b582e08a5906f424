// Runs a command of `sluice` as a function and records its output, for tests of commands.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { runCommand } from '../../src/commands/command-list.ts'
import type { Terminal } from '../../src/commands/terminal.ts'

export interface Ran {
  readonly status: number | undefined
  readonly stdout: string
  readonly stderr: string
}

export function memoryTerminal(): Terminal & { readonly stdout: () => string; readonly stderr: () => string } {
  let [out, error] = ['', '']
  return {
    write: (text) => {
      out += text
    },
    note: (text) => {
      error += text
    },
    paint: (_colour, text) => text,
    interactive: false,
    columns: 200,
    stdout: () => out,
    stderr: () => error,
  }
}

export async function sluice(...argv: readonly string[]): Promise<Ran> {
  const terminal = memoryTerminal()
  const status = await runCommand(argv[0] as string, argv.slice(1), terminal)
  return { status, stdout: terminal.stdout(), stderr: terminal.stderr() }
}

/** Makes a directory with these files, which is removed after the test. */
export function directory(files: Readonly<Record<string, string>> = {}): string {
  const path = mkdtempSync(join(tmpdir(), 'sluice-'))
  onTestFinished(() => rmSync(path, { recursive: true, force: true }))
  for (const [name, text] of Object.entries(files)) writeFileSync(join(path, name), text)
  return path
}

/** Manifests with a service on a node port, three pods on two nodes, and a service without pods. */
export const shop = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Node
metadata: {name: a, labels: {topology.kubernetes.io/zone: east}}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.5.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.50
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec:
  clusterIP: 10.96.0.51
  selector: {app: none}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {nodeName: a, containers: [{name: web, image: web}]}
status: {podIP: 10.1.0.11}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, labels: {app: web}}
spec: {nodeName: b, containers: [{name: web, image: web}]}
status: {podIP: 10.1.1.12}
---
apiVersion: v1
kind: Pod
metadata: {name: web-3, namespace: shop, labels: {app: web}}
spec: {nodeName: b, containers: [{name: web, image: web}]}
status: {podIP: 10.1.1.13, conditions: [{type: Ready, status: "False"}]}
`
