// Runs the embedded API server with the Node of this host for a test: `api-server.worker.js KUBECONFIG`. Writes the kubeconfig when it serves.

import { writeFileSync } from 'node:fs'
import { startApiServer } from '../../../src/apiserver/start.ts'
import { silentLogger } from '../../../src/lib/log.ts'

const [kubeconfig = '', node = '', manifests = ''] = process.argv.slice(2)
const server = await startApiServer({ log: silentLogger, manifests })
const status = { addresses: [{ type: 'InternalIP', address: '192.168.44.5' }] }
await server.client.request({ method: 'POST', path: '/api/v1/nodes', body: { metadata: { name: node }, status } })
writeFileSync(kubeconfig, server.kubeconfig())
