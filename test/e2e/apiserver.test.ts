// The e2e tier: everything that needs a real kube-apiserver and etcd. One file, so that the tier is built, or skipped, once.

import { findBinaries } from './binaries.ts'
import { clusterSuite } from './suites/cluster.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
if ('missing' in found) process.stdout.write(`SKIPPED tier e2e: ${found.missing}\n`)
const binaries = 'directory' in found ? found.directory : undefined

clusterSuite(binaries)
