// Measures the ways in which a client can read all objects of a kind, by what they cost the API server.

import { readFileSync } from 'node:fs'
import { request } from 'node:https'
import { protobufType } from '../src/kube/protobuf/read-body.ts'
import type { FleetCluster } from './fleet-cluster.ts'

const repetitions = 40
const path = '/apis/discovery.k8s.io/v1/endpointslices'
const streamed = 'watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan'
/** The annotation of the bookmark that ends a snapshot; it is the same text in both forms. */
const end = Buffer.from('k8s.io/initial-events-end')

interface Way {
  readonly name: string
  readonly query: string
  readonly accept: string
  readonly gzip?: boolean
}

const json = 'application/json'
const ways: readonly Way[] = [
  { name: 'streamed, consistent, protobuf', query: streamed, accept: protobufType },
  { name: 'streamed, resourceVersion=0, protobuf', query: `${streamed}&resourceVersion=0`, accept: protobufType },
  { name: 'streamed, consistent, JSON', query: streamed, accept: json },
  { name: 'list, consistent, protobuf', query: '', accept: protobufType },
  { name: 'list, resourceVersion=0, protobuf', query: 'resourceVersion=0', accept: protobufType },
  { name: 'list, resourceVersion=0, protobuf, gzip', query: 'resourceVersion=0', accept: protobufType, gzip: true },
  { name: 'list, resourceVersion=0, JSON', query: 'resourceVersion=0', accept: json },
  { name: 'list, resourceVersion=0, JSON, gzip', query: 'resourceVersion=0', accept: json, gzip: true },
]

export interface SnapshotCost {
  readonly name: string
  readonly cpuMs: number
  readonly bytes: number
  readonly wallMs: number
}

/** Each client has a new connection, as at a start. */
export async function measureSnapshots(cluster: FleetCluster, token: string): Promise<readonly SnapshotCost[]> {
  const ca = readFileSync(cluster.authority)
  const costs: SnapshotCost[] = []
  for (const way of ways) {
    await readOnce(cluster.server, ca, token, way)
    const before = cluster.sample()
    for (let n = 0; n < repetitions; n++) await readOnce(cluster.server, ca, token, way)
    const after = cluster.sample()
    costs.push({
      name: way.name,
      cpuMs: (after.cpuMs - before.cpuMs) / repetitions,
      bytes: (after.bytes - before.bytes) / repetitions,
      wallMs: (after.at - before.at) / repetitions,
    })
  }
  return costs
}

function readOnce(server: string, ca: Buffer, token: string, way: Way): Promise<void> {
  const headers = {
    accept: way.query.startsWith('watch') && way.accept !== json ? `${way.accept};stream=watch` : way.accept,
    authorization: `Bearer ${token}`,
    ...(way.gzip === true ? { 'accept-encoding': 'gzip' } : {}),
  }
  return new Promise((resolve, reject) => {
    const outgoing = request(`${server}${path}?${way.query}`, { ca, headers, agent: false }, (response) => {
      if (response.statusCode !== 200) reject(new Error(`${way.name}: status ${response.statusCode}`))
      let tail = Buffer.alloc(0)
      response.on('data', (chunk: Buffer) => {
        tail = Buffer.concat([tail.subarray(-2 * end.length), chunk])
        if (way.query.startsWith('watch') && tail.includes(end)) response.destroy()
      })
      response.once('close', resolve).on('error', () => {})
    })
    outgoing.on('error', reject)
    outgoing.end()
  })
}
