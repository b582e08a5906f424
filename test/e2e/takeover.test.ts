// Runs the suite that takes over from kube-proxy: it needs one program more than the rest of the tier.

import { findBinaries } from './binaries.ts'
import { proxyMissing } from './start-proxy.ts'
import { takeoverSuite } from './suites/takeover.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl', 'kube-proxy'])
const missing = 'missing' in found ? found.missing : proxyMissing()
if (missing !== undefined) process.stdout.write(`SKIPPED tier e2e, taking over: ${missing}\n`)
takeoverSuite(missing === undefined && 'directory' in found ? found.directory : undefined)
