// Follows the flows of a proxy once for all viewers together, as long as there is one. Each stream from another node is a program in the
// pod of its proxy, so that a stream for each viewer would fill the memory of the pod.

import { selectFlows } from '../../daemon/traffic/flow-filter.ts'
import type { AdminClient } from '../../http/admin-client.ts'
import type { FlowCoverage, FlowEvent, FlowQuery } from '../../http/admin-flows.ts'
import type { FlowMessage } from '../../http/admin-page.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'

export interface FlowViewer {
  send(message: FlowMessage): void
  /** Called when the proxy has ended: the viewer may come again. */
  end(): void
}

interface JoinedViewer extends FlowViewer {
  readonly selects: (event: FlowEvent) => boolean
  /** Events that came before the list; undefined after it. */
  early: FlowEvent[] | undefined
}

const all: FlowQuery = { service: '', from: '', verdicts: [], limit: 1 }

export class FlowFeed {
  readonly #reach: () => Promise<AdminClient>
  readonly #viewers = new Set<JoinedViewer>()
  #stop: AbortController | undefined
  #coverage: FlowCoverage | undefined

  constructor(reach: () => Promise<AdminClient>) {
    this.#reach = reach
  }

  /** Sends the flows that are there, and those that begin and end until the returned function is called. */
  subscribe(query: FlowQuery, viewer: FlowViewer): () => void {
    const joined: JoinedViewer = { ...viewer, selects: () => true, early: [] }
    this.#join(joined, query).catch((error: unknown) => this.#fail(joined, error))
    return () => this.#leave(joined)
  }

  async #join(joined: JoinedViewer, query: FlowQuery): Promise<void> {
    const selects = selectFlows(query)
    Object.assign(joined, { selects: (event: FlowEvent) => event.kind === 'coverage' || selects(event.flow) })
    // Events come before the list is asked for: no flow may fall between them.
    this.#viewers.add(joined)
    this.#start()
    const client = await this.#reach()
    const { flows, coverage } = await client.flows(query)
    joined.send({ kind: 'flows', flows, coverage: this.#coverage ?? coverage })
    for (const event of joined.early ?? []) joined.send(event)
    joined.early = undefined
  }

  #start(): void {
    if (this.#stop !== undefined) return
    const stop = new AbortController()
    this.#stop = stop
    this.#follow(stop.signal).catch((error: unknown) => {
      if (!stop.signal.aborted) for (const viewer of [...this.#viewers]) this.#fail(viewer, error)
    })
  }

  async #follow(signal: AbortSignal): Promise<void> {
    const client = await this.#reach()
    await client.followFlows(all, (event) => this.#pass(event), signal)
    throw new ProxyError('no-proxy', 'the proxy has ended')
  }

  #pass(event: FlowEvent): void {
    if (event.kind === 'coverage') this.#coverage = event.coverage
    for (const viewer of this.#viewers) {
      if (!viewer.selects(event)) continue
      if (viewer.early === undefined) viewer.send(event)
      else viewer.early.push(event)
    }
  }

  /** A question that the proxy cannot answer gets the same answer again; a proxy that ended may have a successor. */
  #fail(viewer: JoinedViewer, error: unknown): void {
    this.#leave(viewer)
    viewer.send({ kind: 'failed', message: describeError(error) })
    if (!(error instanceof ProxyError && error.code === 'question')) viewer.end()
  }

  #leave(viewer: JoinedViewer): void {
    this.#viewers.delete(viewer)
    if (this.#viewers.size > 0) return
    this.#stop?.abort()
    this.#stop = undefined
    this.#coverage = undefined
  }
}
