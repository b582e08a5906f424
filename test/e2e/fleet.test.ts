// Runs the suite about the view of all nodes. It takes three proxies, so it has a file of its own.

import { findBinaries } from './binaries.ts'
import { proxyMissing } from './start-proxy.ts'
import { fleetSuite } from './suites/fleet.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
const missing = 'missing' in found ? found.missing : proxyMissing()
if (missing !== undefined) process.stdout.write(`SKIPPED tier e2e, all nodes: ${missing}\n`)
fleetSuite(missing === undefined && 'directory' in found ? found.directory : undefined)
