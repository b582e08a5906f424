// Tests the reflector with a real API server: after every fault it delivers exactly the difference, with nothing lost and nothing twice.

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { Client, defaultUserAgent } from '../../../src/kube/client.ts'
import { loadConnection } from '../../../src/kube/kubeconfig.ts'
import { chooseAccept, jsonType } from '../../../src/kube/protobuf/accept-types.ts'
import { protobufType } from '../../../src/kube/protobuf/read-body.ts'
import { Reflector, type ReflectorOptions } from '../../../src/kube/reflect/reflector.ts'
import { endpointSlices } from '../../../src/kube/reflect/watched-resources.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import type { SliceRecord } from '../../../src/model/types.ts'
import { until } from '../../support/until.ts'
import { type Cluster, startCluster } from '../cluster.ts'
import { RBAC } from '../cluster-fixture.ts'
import { type Gate, startGate } from '../gate.ts'
import { list, slice } from '../kubectl-manifests.ts'

const encodings: readonly [string, string][] = [
  ['protobuf', chooseAccept({ contentType: protobufType, acceptContentTypes: '' })],
  ['JSON', jsonType],
]

export function reflectorSuite(binaries: string | undefined): void {
  describe.skipIf(binaries === undefined).each(encodings)('the reflector, with answers in %s', (_, accept) => {
    let cluster: Cluster
    let gate: Gate
    let client: Client
    let stopped: AbortController
    let running: Promise<void> | undefined
    /** Deliveries to the sink since the last call of `nextDeliveries`. */
    let delivered: string[]

    beforeAll(async () => {
      cluster = await startCluster({ binaries: binaries! })
      await cluster.kubectl(['apply', '-f', RBAC])
      gate = await startGate(cluster.port)
      const token = await cluster.mintToken('kube-system', 'sluice')
      const kubeconfig = cluster.writeKubeconfig('reflector', { token }, `https://127.0.0.1:${gate.port}`)
      client = new Client(loadConnection({ kubeconfig, master: '', env: {} }), {
        qps: 50,
        burst: 100,
        accept,
        userAgent: defaultUserAgent,
        log: silentLogger,
        clock: systemClock,
      })
    })
    beforeEach(() => {
      stopped = new AbortController()
      delivered = []
    })
    afterEach(async () => {
      gate.open()
      stopped.abort()
      await running
      await cluster.kubectl(['delete', '--raw', COLLECTION]) // all in one request
    })
    afterAll(async () => {
      await gate?.stop()
      await cluster?.stop()
    })

    const reflect = async (through: ReflectorOptions<SliceRecord>['client'] = client) => {
      const reflector = new Reflector<SliceRecord>({
        ...endpointSlices,
        client: through,
        clock: systemClock,
        log: silentLogger,
        sink: {
          put: (key, record) => delivered.push(`put ${key} ${Array.from(record.endpoints, ({ ip }) => ip).join(',')}`),
          drop: (key) => delivered.push(`drop ${key}`),
          synced: () => delivered.push('synced'),
          problem: (problem) => delivered.push(`problem ${problem.message}`),
        },
      })
      running = reflector.run(stopped.signal)
      await until('synced', () => reflector.status().synced, { limitMs: 60_000 })
      return reflector
    }
    /**
     * Waits until `last` was delivered and returns all deliveries, sorted, since a snapshot has no order. The limit allows for the
     * back-off, which may have grown to 30 s while the server was away.
     */
    const nextDeliveries = async (last: string, limitMs = 60_000) => {
      await until(`${last} is delivered`, () => delivered.includes(last), { limitMs })
      await new Promise((resolve) => setTimeout(resolve, 300)) // a second delivery would come now
      return delivered.splice(0).sort()
    }
    /** Puts `keep`, `change` and `leave`; changes, deletes and adds while the gate is shut; opens the gate. */
    const changeBehindTheGate = async (between: () => Promise<unknown>) => {
      await cluster.apply(
        list(
          slice('keep', 'web', ['10.0.0.1']),
          slice('change', 'web', ['10.0.0.2']),
          slice('leave', 'web', ['10.0.0.3']),
        ),
      )
      await until('all three', () => delivered.length >= 3)
      delivered.length = 0
      gate.shut()
      await cluster.kubectl(['delete', 'endpointslice', 'leave'])
      await cluster.apply(slice('change', 'web', ['10.0.0.22']))
      await cluster.apply(slice('come', 'web', ['10.0.0.4']))
      await between()
      gate.open()
    }
    const difference = ['drop default/leave', 'put default/change 10.0.0.22', 'put default/come 10.0.0.4']

    it('delivers each create, change and delete once, in order', async () => {
      await cluster.apply(slice('old', 'web', ['10.0.0.9']))
      await reflect()
      expect(delivered.splice(0)).toEqual(['put default/old 10.0.0.9', 'synced'])
      await cluster.apply(slice('a', 'web', ['10.0.0.1']))
      await cluster.apply(slice('a', 'web', ['10.0.0.1', '10.0.0.2']))
      await cluster.kubectl(['delete', 'endpointslice', 'a'])
      await until('deleted', () => delivered.includes('drop default/a'))
      expect(delivered).toEqual(['put default/a 10.0.0.1', 'put default/a 10.0.0.1,10.0.0.2', 'drop default/a'])
    })

    it('D19: an object that stops matching the selector is a delete, and comes back as an add', async () => {
      await reflect()
      await cluster.apply(slice('a', 'web', ['10.0.0.1']))
      await nextDeliveries('put default/a 10.0.0.1')
      await cluster.kubectl(['label', 'endpointslice', 'a', 'service.kubernetes.io/headless='])
      expect(await nextDeliveries('drop default/a')).toEqual(['drop default/a'])
      await cluster.kubectl(['label', 'endpointslice', 'a', 'service.kubernetes.io/headless-'])
      expect(await nextDeliveries('put default/a 10.0.0.1')).toEqual(['put default/a 10.0.0.1'])
    })

    it('continues when only the connection broke', async () => {
      await cluster.useFlags()
      await reflect()
      const before = snapshots()
      await changeBehindTheGate(async () => {})
      expect(await nextDeliveries('put default/come 10.0.0.4')).toEqual(difference)
      expect(snapshots()).toBe(before)
    })

    it('delivers the difference after the API server was killed and restarted', async () => {
      await reflect()
      await changeBehindTheGate(async () => {
        await cluster.killApiServer()
        await cluster.startApiServer()
      })
      expect(await nextDeliveries('put default/come 10.0.0.4')).toEqual(difference)
    })

    it('delivers the difference after etcd has compacted its version away (410)', async () => {
      await cluster.useFlags('--watch-cache=false') // every watch asks etcd
      await reflect()
      const before = snapshots()
      await changeBehindTheGate(() => cluster.compact())
      expect(await nextDeliveries('put default/come 10.0.0.4')).toEqual(difference)
      expect(snapshots()).toBeGreaterThan(before)
    })

    it('takes a new snapshot when etcd has compacted up to the very next version (500 in the stream)', async () => {
      await cluster.useFlags('--watch-cache=false')
      await reflect()
      await cluster.apply(slice('a', 'web', ['10.0.0.1']))
      await nextDeliveries('put default/a 10.0.0.1')
      gate.shut()
      await cluster.apply(slice('a', 'web', ['10.0.0.2']))
      await cluster.compact()
      gate.open()
      expect(await nextDeliveries('put default/a 10.0.0.2', 30_000)).toEqual(['put default/a 10.0.0.2'])
    })

    it('reads pages where lists are not streamed, and again when the pages expire between two of them', async () => {
      await cluster.useFlags('--watch-cache=false', '--feature-gates=WatchList=false')
      const many = Array.from({ length: 600 }, (_, i) => slice(`many-${i}`, 'web', [`10.1.${i >> 8}.${i & 255}`]))
      await cluster.kubectl(['create', '-f', '-'], list(...many))
      let pages = 0
      await reflect({
        stream: (call) => client.stream(call),
        request: async (call) => {
          const answer = await client.request(call)
          if (++pages === 1) {
            await cluster.apply(slice('many-0', 'web', ['10.1.9.9']))
            await cluster.compact()
          }
          return answer
        },
      })
      expect(delivered.filter((line) => line.startsWith('put '))).toHaveLength(601) // many-0 twice, since it changed
      expect(delivered.at(-1)).toBe('synced')
      expect(pages).toBe(2) // the first page, and everything in one page after the second had expired
      const expired = cluster.audit().filter((record) => record.responseStatus?.code === 410)
      expect(expired.map((record) => record.verb)).toEqual(['list'])
      delivered.length = 0
      await cluster.apply(slice('many-1', 'web', ['10.1.8.8']))
      expect(await nextDeliveries('put default/many-1 10.1.8.8')).toEqual(['put default/many-1 10.1.8.8'])
    })

    /** Returns the number of snapshots that the API server has served, streamed or listed. */
    const snapshots = () => {
      const asked = cluster
        .audit()
        .filter(({ requestURI }) => requestURI.startsWith(endpointSlices.resource))
        .filter(({ verb, requestURI }) => verb === 'list' || requestURI.includes('sendInitialEvents'))
      return new Set(asked.map(({ auditID }) => auditID)).size
    }
  })
}

const COLLECTION = '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices'
