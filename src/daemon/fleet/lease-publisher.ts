// Publishes what the proxy knows about itself in a Lease of its node, for `sluice nodes`. All proxies look at themselves at the same times
// (whole multiples of the interval), so that their reports can be compared, and write at different times, so that the API server gets an
// even load.

import type { NodeReport, ObjectsSnapshot } from '../../inspect/node-report.ts'
import { reportAnnotation } from '../../inspect/node-report.ts'
import type { Client } from '../../kube/client.ts'
import { asObject, readString } from '../../kube/decode/fields.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { hashText } from '../../lib/set-sketch.ts'
import { type Clock, formatTime, sleep } from '../../lib/time.ts'

export interface LeasePublisherOptions {
  readonly client: Pick<Client, 'request'>
  readonly clock: Clock
  readonly log: Logger
  readonly node: string
  readonly namespace: string
  readonly intervalMs: number
  /** Undefined before the first sync. */
  readonly takeSnapshot: () => Promise<Omit<ObjectsSnapshot, 'at'> | undefined>
  readonly describe: (snapshots: readonly ObjectsSnapshot[]) => Promise<NodeReport>
}

/** The first report is written soon after the start, whatever the time is. */
const firstMs = 2_000
const requestMs = 10_000
/** The part of an interval over which the nodes spread their writes. */
const spread = 0.6

export class LeasePublisher {
  readonly #options: LeasePublisherOptions
  #snapshots: readonly ObjectsSnapshot[] = []
  #lastFailure = ''

  constructor(options: LeasePublisherOptions) {
    this.#options = options
  }

  /** Resolves when the signal aborts. The Lease stays: its age shows that the proxy has ended. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, intervalMs, node } = this.#options
    const delayMs = (hashText(node) / 2 ** 32) * intervalMs * spread
    try {
      await sleep(clock, Math.min(firstMs, intervalMs), signal)
      await this.#publish(clock.now(), signal)
      for (;;) {
        const tick = (Math.floor(clock.now() / intervalMs) + 1) * intervalMs
        await sleep(clock, tick - clock.now(), signal)
        await this.#look(tick)
        await sleep(clock, delayMs, signal)
        await this.#write(signal)
      }
    } catch (error) {
      if (!signal.aborted) throw error
    }
  }

  async #publish(at: number, signal: AbortSignal): Promise<void> {
    await this.#look(at)
    await this.#write(signal)
  }

  async #look(at: number): Promise<void> {
    const taken = await this.#options.takeSnapshot()
    if (taken !== undefined) this.#snapshots = [{ at: formatTime(at), ...taken }, ...this.#snapshots].slice(0, 2)
  }

  async #write(signal: AbortSignal): Promise<void> {
    const { log, namespace, node } = this.#options
    try {
      await this.#writeLease(signal)
      if (this.#lastFailure !== '') log.info('The report of this node is published again', { namespace, lease: node })
      this.#lastFailure = ''
    } catch (error) {
      if (signal.aborted) throw error
      const code = error instanceof ProxyError ? error.code : 'timeout'
      // One line per reason: an API server that is away is reported by others already.
      if (code !== this.#lastFailure) {
        const message = 'Cannot publish the report of this node; sluice nodes shows an old one'
        log.warn(message, { namespace, error: describeError(error) })
      }
      this.#lastFailure = code
    }
  }

  async #writeLease(outer: AbortSignal): Promise<void> {
    const { client, clock, node, namespace, intervalMs, describe } = this.#options
    const report = await describe(this.#snapshots)
    const signal = AbortSignal.any([outer, AbortSignal.timeout(requestMs)])
    const collection = `/apis/coordination.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/leases`
    const changes = {
      metadata: { annotations: { [reportAnnotation]: JSON.stringify(report) } },
      spec: {
        holderIdentity: node,
        leaseDurationSeconds: Math.ceil((3 * intervalMs) / 1000),
        renewTime: new Date(clock.now()).toISOString().replace('Z', '000Z'),
      },
    }
    try {
      const contentType = 'application/merge-patch+json'
      await client.request({
        method: 'PATCH',
        path: `${collection}/${encodeURIComponent(node)}`,
        contentType,
        body: changes,
        signal,
      })
    } catch (error) {
      if (!(error instanceof ProxyError) || error.code !== 'not-found') throw error
      const metadata = { name: node, namespace, ...changes.metadata, ...(await this.#ownedByNode(signal)) }
      const body = { apiVersion: 'coordination.k8s.io/v1', kind: 'Lease', metadata, spec: changes.spec }
      await client.request({ method: 'POST', path: collection, body, signal })
    }
  }

  /** The Lease goes with the Node. */
  async #ownedByNode(signal: AbortSignal): Promise<object> {
    const { client, node } = this.#options
    const { json } = await client.request({ path: `/api/v1/nodes/${encodeURIComponent(node)}`, signal })
    const uid = readString(asObject(asObject(json)?.metadata), 'uid')
    return uid === '' ? {} : { ownerReferences: [{ apiVersion: 'v1', kind: 'Node', name: node, uid }] }
  }
}
