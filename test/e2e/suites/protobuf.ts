// Tests our protobuf tables with the descriptors of Kubernetes, and our reader with objects that a real API server encodes.

import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { messages } from '../../../src/apiserver/protobuf/protobuf-fields.ts'
import { Client, defaultUserAgent } from '../../../src/kube/client.ts'
import { loadConnection } from '../../../src/kube/kubeconfig.ts'
import { chooseAccept } from '../../../src/kube/protobuf/accept-types.ts'
import {
  envelope,
  managedFieldsEntry,
  node,
  nodeCapacity,
  objectList,
  status,
  watchEvent,
} from '../../../src/kube/protobuf/message-tables.ts'
import { protobufType } from '../../../src/kube/protobuf/read-body.ts'
import type { MessageTable } from '../../../src/kube/protobuf/read-message.ts'
import { readOrigin } from '../../../src/kube/reflect/object-origin.ts'
import { parsePage, parseProtobufPage } from '../../../src/kube/reflect/watch-messages.ts'
import {
  describeOwnNode,
  endpointSlices,
  nodeCapacities,
  serviceCidrs,
  services,
} from '../../../src/kube/reflect/watched-resources.ts'
import { ApiError } from '../../../src/lib/errors.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import { type RandomObject, randomService, randomSlice } from '../../support/random-objects.ts'
import { type Cluster, startCluster } from '../cluster.ts'
import { node as nodeManifest } from '../kubectl-manifests.ts'

/** Modules and the descriptors in them that define the messages we read. */
const descriptors: readonly [string, string, string][] = [
  ['k8s.io/api', 'core/v1', 'io.k8s.api.core.v1'],
  ['k8s.io/api', 'discovery/v1', 'io.k8s.api.discovery.v1'],
  ['k8s.io/api', 'networking/v1', 'io.k8s.api.networking.v1'],
  ['k8s.io/api', 'events/v1', 'io.k8s.api.events.v1'],
  ['k8s.io/api', 'authentication/v1', 'io.k8s.api.authentication.v1'],
  ['k8s.io/api', 'authorization/v1', 'io.k8s.api.authorization.v1'],
  ['k8s.io/apimachinery', 'pkg/apis/meta/v1', 'io.k8s.apimachinery.pkg.apis.meta.v1'],
  ['k8s.io/apimachinery', 'pkg/api/resource', 'io.k8s.apimachinery.pkg.api.resource'],
  ['k8s.io/apimachinery', 'pkg/runtime', 'io.k8s.apimachinery.pkg.runtime'],
]

/** Field numbers by message and field, from the text of a descriptor. */
function readDescriptor(text: string, prefix: string, into: Map<string, Map<string, number>>): void {
  let fields: Map<string, number> | undefined
  for (const line of text.split('\n')) {
    const message = /^message (\w+) \{/.exec(line)?.[1]
    if (message !== undefined) {
      fields = new Map()
      into.set(`${prefix}.${message}`, fields)
    }
    const [, name, number] = /^ {2}(?:optional|repeated|map<)[^=]* (\w+) = (\d+)/.exec(line) ?? []
    if (name !== undefined && number !== undefined) fields?.set(name, Number(number))
  }
}

function readDescriptors(binaries: string): Map<string, Map<string, number>> {
  const all = new Map<string, Map<string, number>>()
  for (const [module, folder, prefix] of descriptors) {
    const options = { cwd: join(binaries, 'module'), encoding: 'utf8' } as const
    const directory = execFileSync('go', ['list', '-mod=mod', '-m', '-f', '{{.Dir}}', module], options).trim()
    readDescriptor(readFileSync(join(directory, folder, 'generated.proto'), 'utf8'), prefix, all)
  }
  return all
}

/** The table and all tables in it. */
const withInner = (table: MessageTable): MessageTable[] => [
  table,
  ...table.byNumber.flatMap((field) => (field?.table === undefined ? [] : withInner(field.table))),
]

export function protobufSuite(binaries: string | undefined): void {
  describe.skipIf(binaries === undefined)('protobuf', () => {
    const resources = [services, endpointSlices, serviceCidrs]

    it('has the field numbers of the descriptors', () => {
      const known = readDescriptors(binaries!)
      const tables = [
        ...resources.map(({ protobuf }) => protobuf),
        node,
        nodeCapacity,
        managedFieldsEntry,
        envelope,
        objectList,
        watchEvent,
        status,
      ]
      const pairs = [
        ...tables.flatMap(withInner).map(({ name, numbers }) => [name, numbers] as const),
        ...Object.entries(messages).filter(([name]) => name !== 'TypeMeta'),
      ]
      let compared = 0
      for (const [message, numbers] of pairs) {
        for (const [field, number] of Object.entries(numbers)) {
          expect([message, field, known.get(message)?.get(field)]).toEqual([message, field, number])
          compared++
        }
      }
      expect(compared).toBeGreaterThan(150)
    })

    describe('from a real API server', () => {
      let cluster: Cluster
      let client: Client

      beforeAll(async () => {
        cluster = await startCluster({ binaries: binaries! })
        client = new Client(loadConnection({ kubeconfig: cluster.kubeconfig, master: '', env: {} }), {
          qps: 500,
          burst: 500,
          accept: chooseAccept({ contentType: protobufType, acceptContentTypes: '' }),
          userAgent: defaultUserAgent,
          log: silentLogger,
          clock: systemClock,
        })
      })
      afterAll(async () => {
        client?.close()
        await cluster?.stop()
      })

      /** Creates the objects that the server accepts, and returns how many these are. */
      const create = async (path: string, objects: readonly RandomObject[]): Promise<number> => {
        let accepted = 0
        for (const [i, object] of objects.entries()) {
          const body = { ...object, metadata: { ...(object.metadata as RandomObject), name: `random-${i}` } }
          const outcome = await client.request({ method: 'POST', path, body }).catch((error: unknown) => error)
          if (!(outcome instanceof ApiError)) accepted++
        }
        return accepted
      }

      it('decodes random objects to the same records from protobuf and from JSON', async () => {
        await cluster.apply(nodeManifest('node', ['192.0.2.1', '2001:db8::1'], 'zone-1'))
        expect(
          await create('/api/v1/namespaces/default/services', fc.sample(randomService, { seed: 7, numRuns: 1500 })),
        ).toBeGreaterThan(50)
        const slices = '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices'
        expect(await create(slices, fc.sample(randomSlice, { seed: 7, numRuns: 1500 }))).toBeGreaterThan(300)
        const status = { capacity: { cpu: '2' }, allocatable: { cpu: '1.93', memory: '1e9' } }
        // The label has a manager; the server notes none for a status that comes with the object.
        const sized = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'sized', labels: { size: 'small' } }, status }
        await client.request({ method: 'POST', path: '/api/v1/nodes', body: sized })
        for (const { resource, protobuf, decode } of [...resources, describeOwnNode('node'), nodeCapacities]) {
          const [plain, packed] = [
            await client.request({ path: resource }),
            await client.request({ path: resource, readsProtobuf: true }),
          ]
          expect(packed.protobuf).toBeInstanceOf(Buffer)
          const fromJson = parsePage(plain.json)
          const fromProtobuf = parseProtobufPage(packed.protobuf!, protobuf)
          expect(fromProtobuf.items.map(decode as (json: unknown) => unknown)).toEqual(
            fromJson.items.map(decode as (json: unknown) => unknown),
          )
          expect(fromJson.items).not.toEqual([])
          const origins = fromProtobuf.items.map((item) => readOrigin(item, false))
          expect(origins).toEqual(fromJson.items.map((item) => readOrigin(item, false)))
          const isKnown = ({ manager, operation, resourceVersion }: (typeof origins)[number]) =>
            manager && operation && resourceVersion
          expect([resource, origins.filter((origin) => !isKnown(origin))]).toEqual([resource, []])
        }
        const { protobuf: nodes } = await client.request({ path: '/api/v1/nodes', readsProtobuf: true })
        const capacities = parseProtobufPage(nodes!, nodeCapacities.protobuf).items.map(nodeCapacities.decode)
        expect(capacities.map(({ record }) => record)).toContainEqual({ name: 'sized', milliCpu: 1_930 })
      })
    })
  })
}
