// The e2e tier: everything that needs a real kube-apiserver and etcd. One file, so that the tier is built, or skipped, once.

import { findBinaries } from './binaries.ts'
import { proxyMissing } from './proxy.ts'
import { clusterSuite } from './suites/cluster.ts'
import { nodeSuite } from './suites/node.ts'
import { processSuite } from './suites/process.ts'
import { reflectorSuite } from './suites/reflector.ts'
import { startupSuite } from './suites/startup.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
if ('missing' in found) process.stdout.write(`SKIPPED tier e2e: ${found.missing}\n`)
const binaries = 'directory' in found ? found.directory : undefined
const missing = proxyMissing()
if (binaries !== undefined && missing !== undefined) process.stdout.write(`SKIPPED tier e2e, the process: ${missing}\n`)

clusterSuite(binaries)
reflectorSuite(binaries)
processSuite(missing === undefined ? binaries : undefined)
startupSuite(missing === undefined ? binaries : undefined)
nodeSuite(missing === undefined ? binaries : undefined)
