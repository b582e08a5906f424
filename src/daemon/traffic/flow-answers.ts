// Answers questions about flows. Listens from the first watcher to the last, and to nothing while nobody looks.

import type { LoggedFlow } from '../../engine/flows/flow-log.ts'
import type { FlowAnswers, FlowCoverage, FlowEvent, FlowList, FlowQuery } from '../../http/admin-flows.ts'
import type { Metrics } from '../../http/metrics.ts'
import { ProxyError } from '../../lib/errors.ts'
import { splitHostPort } from '../../lib/ip.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { isRefusedWith } from '../../sys/netlink/netlink-errors.ts'
import { describeFlow, type FlowSelection, makeFlowFilter } from './flow-filter.ts'
import type { FlowReading, FlowSession } from './flow-session.ts'
import type { PodNames } from './pod-names.ts'

export interface FlowOptions {
  readonly reading: FlowReading
  readonly names: PodNames
  readonly metrics: Pick<Metrics, 'flows'>
  /** What flows of this mode do not show, as sentences. */
  readonly remarks: readonly string[]
  readonly clock: Clock
}

interface Watcher {
  readonly filter: FlowSelection
  readonly send: (event: FlowEvent) => void
  readonly waiting: LoggedFlow[]
  coverageDue: boolean
  /** The number of skipped flows that the watcher has heard of. */
  toldSkipped: number
}

/** Flows are sent in batches, so that names are asked for once. */
const flushMs = 200
/** The most flows that wait for a batch. */
const maxWaiting = 2_000

export class Flows implements FlowAnswers {
  readonly #options: FlowOptions
  readonly #watchers = new Set<Watcher>()
  #session: FlowSession | undefined
  #timer: Timer | undefined
  #skipped = 0

  constructor(options: FlowOptions) {
    this.#options = options
  }

  async list(query: FlowQuery): Promise<FlowList> {
    const filter = makeFlowFilter(query)
    const now = await this.#options.reading.list(AbortSignal.timeout(30_000)).catch((error: unknown) => {
      throw toQuestionError(error)
    })
    const ended = this.#session?.list().filter(({ verdict }) => verdict !== 'open') ?? []
    const held = new Map([...now.flows, ...ended].map((flow) => [flow.id, flow]))
    const selected = [...held.values()].filter(filter.selects)
    const shown = selected.slice(-query.limit)
    const flows = (await this.#describe(shown)).filter(filter.selectsNamed)
    const coverage = this.#coverage()
    return {
      flows,
      coverage: { ...coverage, skipped: coverage.skipped + now.skipped + selected.length - shown.length },
    }
  }

  watch(query: FlowQuery, listener: (event: FlowEvent) => void): () => void {
    const watcher: Watcher = {
      ...{ filter: makeFlowFilter(query), send: listener, waiting: [], coverageDue: true, toldSkipped: 0 },
    }
    this.#session ??= this.#openSession()
    // Those who come later also get what is open.
    for (const flow of this.#session.list()) {
      if (flow.verdict === 'open' && watcher.filter.selects(flow)) watcher.waiting.push(flow)
    }
    this.#watchers.add(watcher)
    this.#options.metrics.flows.watchers(this.#watchers.size)
    this.#flushLater()
    return () => this.#leave(watcher)
  }

  close(): void {
    for (const watcher of [...this.#watchers]) this.#leave(watcher)
  }

  #leave(watcher: Watcher): void {
    if (!this.#watchers.delete(watcher)) return
    this.#options.metrics.flows.watchers(this.#watchers.size)
    if (this.#watchers.size > 0) return
    this.#timer?.cancel()
    this.#timer = undefined
    this.#session?.close()
    this.#session = undefined
    this.#skipped = 0
  }

  #openSession(): FlowSession {
    const { metrics, reading } = this.#options
    try {
      return reading.open({
        flow: (flow) => this.#queue(flow),
        coverageChanged: () => {
          for (const watcher of this.#watchers) watcher.coverageDue = true
        },
        lost: () => metrics.flows.lost(),
      })
    } catch (error) {
      throw toQuestionError(error)
    }
  }

  #queue(flow: LoggedFlow): void {
    for (const { filter, waiting } of this.#watchers) {
      if (!filter.selects(flow)) continue
      if (waiting.length < maxWaiting) waiting.push(flow)
      else this.#skipped++
    }
  }

  #flushLater(): void {
    const again = () => {
      this.#timer = undefined
      if (this.#watchers.size > 0) this.#flushLater()
    }
    this.#timer ??= this.#options.clock.after(flushMs, () => void this.#flush().then(again, again))
  }

  /** Never rejects: names that cannot be read are left out. */
  async #flush(): Promise<void> {
    for (const watcher of this.#watchers) {
      const flows = await this.#describe(watcher.waiting.splice(0))
      this.#sendCoverage(watcher)
      for (const flow of flows) if (watcher.filter.selectsNamed(flow)) watcher.send({ kind: 'flow', flow })
    }
  }

  /** Sends what changed of the coverage, before the flows: a flow that is left out must not go unnoticed. */
  #sendCoverage(watcher: Watcher): void {
    if (!watcher.coverageDue && watcher.toldSkipped === this.#allSkipped) return
    watcher.coverageDue = false
    watcher.toldSkipped = this.#allSkipped
    watcher.send({ kind: 'coverage', coverage: this.#coverage() })
  }

  get #allSkipped(): number {
    return this.#skipped + (this.#session?.skipped ?? 0)
  }

  async #describe(selected: readonly LoggedFlow[]) {
    const { names, reading } = this.#options
    const flows = (await reading.locate?.(selected).catch(() => selected)) ?? selected
    await names.prepare(flows.map(({ port, source }) => ({ service: port.service, client: source })))
    return flows.map((flow) =>
      describeFlow(flow, {
        client: names.clientPod(flow.source),
        endpoint: names.endpointPod(flow.port.service, splitHostPort(flow.endpoint)?.host ?? ''),
      }),
    )
  }

  #coverage(): FlowCoverage {
    const { remarks, names, reading } = this.#options
    return {
      sampled: this.#session?.sampled ?? 1,
      lost: this.#session?.lost ?? 0,
      skipped: this.#allSkipped,
      watchers: this.#watchers.size,
      remarks: [...remarks, ...reading.remarks(), names.problem, this.#session?.remark ?? ''].filter(
        (remark) => remark !== '',
      ),
    }
  }
}

/** The person who asks must hear why; anything else is an error of the proxy. */
const toQuestionError = (error: unknown): unknown =>
  isRefusedWith(error, 'EPERM')
    ? new ProxyError('question', 'the proxy may not read connections: it needs CAP_NET_ADMIN', { cause: error })
    : error
