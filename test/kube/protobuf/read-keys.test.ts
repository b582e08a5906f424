// Compares the keys of labels and annotations that protobuf messages are read for with those that the decoders read: a key that is missing
// in the table is lost in protobuf, and only there.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { readAnnotations, readLabels } from '../../../src/kube/protobuf/message-tables.ts'
import { isSnapshotEnd } from '../../../src/kube/reflect/watch-messages.ts'
import {
  describeOwnNode,
  endpointSlices,
  nodeCapacities,
  serviceCidrs,
  services,
} from '../../../src/kube/reflect/watched-resources.ts'

const folders = ['decode', 'reflect'].map((name) => join(import.meta.dirname, '../../../src/kube', name))

/** A map of strings that notes which keys are asked for. */
const recording = (seen: Set<string>, values: Readonly<Record<string, string>> = {}): object =>
  new Proxy(values, {
    get(target, key) {
      if (typeof key === 'string') seen.add(key)
      return Reflect.get(target, key)
    },
  })

/** Decodes a valid object of every kind, so that no decoder ends early. */
function readKeys() {
  const labels = new Set<string>()
  const annotations = new Set<string>()
  const metadata = (name: string, values = {}) => ({
    name,
    namespace: 'shop',
    labels: recording(labels, values),
    annotations: recording(annotations),
  })
  const objects = [
    [services, { metadata: metadata('web'), spec: { clusterIP: '10.96.0.1', ports: [{ port: 80 }] } }],
    [
      endpointSlices,
      {
        metadata: metadata('web-1', { 'kubernetes.io/service-name': 'web' }),
        addressType: 'IPv4',
        ports: [{ name: '', port: 8080, protocol: 'TCP' }],
        endpoints: [{ addresses: ['10.1.0.1'] }],
      },
    ],
    [serviceCidrs, { metadata: metadata('kubernetes'), spec: { cidrs: ['10.96.0.0/16'] } }],
    [nodeCapacities, { metadata: metadata('a'), status: {} }],
    [describeOwnNode('a'), { metadata: metadata('a'), spec: {}, status: {} }],
  ] as const
  for (const [{ kind, decode }, object] of objects) {
    const { record, problems } = decode({ kind, ...object })
    expect([kind, record !== undefined, problems]).toEqual([kind, true, []])
  }
  isSnapshotEnd({ metadata: metadata('bookmark') })
  return { labels: [...labels].sort(), annotations: [...annotations].sort() }
}

describe('the keys that protobuf messages are read for', () => {
  it('are those that the decoders read', () => {
    const { labels, annotations } = readKeys()
    expect(labels).toEqual([...readLabels].sort())
    expect(annotations).toEqual([...readAnnotations].sort())
  })

  it('contain every key that a decoder names, also one that it reads only sometimes', () => {
    const files = folders.flatMap((folder) => readdirSync(folder).map((name) => join(folder, name)))
    const named = files.flatMap((file) => {
      const text = readFileSync(file, 'utf8')
      return [...text.matchAll(/'((?:[a-z0-9-]+\.)*[a-z0-9-]+\/[a-z][a-z0-9-]+)'/g)].map(([, key]) => key as string)
    })
    const known = [...readLabels, ...readAnnotations]
    expect(known.filter((key) => !named.includes(key))).toEqual([])
    expect(named.filter((key) => !known.includes(key) && !/^(application|node)\//.test(key))).toEqual([])
  })
})
