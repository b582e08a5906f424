// Runs the suites that need a real kube-apiserver and etcd, in one file, so that the programs are built, or the tier skipped, once.

import { findBinaries } from './binaries.ts'
import { proxyMissing } from './start-proxy.ts'
import { clusterToolsSuite } from './suites/cluster-tools.ts'
import { nodeSideSuite } from './suites/node-side.ts'
import { protobufSuite } from './suites/protobuf.ts'
import { reflectorSuite } from './suites/reflector.ts'
import { runningProxySuite } from './suites/running-proxy.ts'
import { startupSuite } from './suites/startup.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
if ('missing' in found) process.stdout.write(`SKIPPED tier e2e: ${found.missing}\n`)
const binaries = 'directory' in found ? found.directory : undefined
const missing = proxyMissing()
if (binaries !== undefined && missing !== undefined) process.stdout.write(`SKIPPED tier e2e, the process: ${missing}\n`)

clusterToolsSuite(binaries)
protobufSuite(binaries)
reflectorSuite(binaries)
runningProxySuite(missing === undefined ? binaries : undefined)
startupSuite(missing === undefined ? binaries : undefined)
nodeSideSuite(missing === undefined ? binaries : undefined)
