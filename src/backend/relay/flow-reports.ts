// Reports the flows of relays while someone follows them, and lists the open ones. Without a listener nothing is described and nothing is kept.

import type { Family } from '../../lib/ip.ts'
import type { RelayedFlow, RelayedFlowListener, RelayedFlows, RelayTotals, RelayVerdict } from '../relayed-flows.ts'

/** A relay of which the open flows can be listed. */
export interface FlowHolder {
  listFlows(): Iterable<RelayedFlow>
}

/** What a relay knows of the service port that it serves. */
export interface FlowOrigin {
  readonly family: Family
  readonly protocol: 'tcp' | 'udp'
  /** The service port now, `ns/name:port`: a socket may get another service. */
  readonly port: () => string
}

/** The reports of all relays of a mode. */
export class FlowReports implements Omit<RelayedFlows, 'remarks'> {
  readonly now: () => number
  readonly #holders = new Set<FlowHolder>()
  #listener: RelayedFlowListener | undefined
  #ids = 0

  /** `now` returns Unix ms. */
  constructor(now: () => number) {
    this.now = now
  }

  *list(): Iterable<RelayedFlow> {
    for (const holder of this.#holders) yield* holder.listFlows()
  }

  follow(listener: RelayedFlowListener): () => void {
    this.#listener = listener
    return () => {
      if (this.#listener === listener) this.#listener = undefined
    }
  }

  /** False while nobody follows: the relay must not even describe the flow then. */
  selects(clientPort: number): boolean {
    return this.#listener?.selects(clientPort) === true
  }

  note(flow: RelayedFlow): void {
    this.#listener?.note(flow)
  }

  /** A flow gets its number when it is described for the first time. */
  nextId(): number {
    return ++this.#ids
  }

  hold(holder: FlowHolder): void {
    this.#holders.add(holder)
  }

  forget(holder: FlowHolder): void {
    this.#holders.delete(holder)
  }
}

/** Where a relay reports its flows, and for which service port. */
export interface FlowReporter {
  readonly reports: FlowReports
  readonly origin: FlowOrigin
}

/** What a relay reads from its sockets when a flow is described. */
export interface FlowState {
  readonly local: string
  readonly localPort: number
  readonly traffic: RelayTotals
}

/** The part of a relayed client that flows are described from. A relay holds one for each open client, and nothing of clients that are gone. */
export class FlowRecord {
  readonly client: string
  readonly clientPort: number
  readonly #reporter: FlowReporter
  readonly #port: string
  readonly #readState: () => FlowState
  #endpoint = ''
  #startedAt = 0
  #id = 0
  #isOpen = false

  constructor(reporter: FlowReporter, client: FlowClient, readState: () => FlowState) {
    this.#reporter = reporter
    this.client = client.ip
    this.clientPort = client.port
    this.#port = reporter.origin.port()
    this.#readState = readState
  }

  /** True if an endpoint was chosen for the client at some time. */
  get hasBegun(): boolean {
    return this.#endpoint !== ''
  }

  /** The relay sends the client to this endpoint from now on, or tries to. */
  begin(endpoint: string): void {
    this.#endpoint = endpoint
    this.#startedAt = this.#reporter.reports.now()
    this.#id = 0
    this.#isOpen = true
    this.#report('open')
  }

  /** Does nothing if the flow has ended before. `judge` is called only if someone follows. */
  end(judge: () => RelayVerdict): void {
    if (!this.#isOpen) return
    this.#isOpen = false
    this.#report(judge)
  }

  /** The relay turns the client away: the flow ends, or it is one without an endpoint. */
  turnAway(verdict: 'rejected' | 'dropped', why: string): void {
    if (!this.#isOpen) {
      this.#endpoint = ''
      this.#startedAt = this.#reporter.reports.now()
      this.#id = 0
    }
    this.#isOpen = false
    this.#report(verdict, why)
  }

  /** Undefined if the flow is not open. */
  describe(): RelayedFlow | undefined {
    return this.#isOpen ? this.#describe('open', '') : undefined
  }

  #report(verdict: RelayVerdict | (() => RelayVerdict), why = ''): void {
    const { reports } = this.#reporter
    if (!reports.selects(this.clientPort)) return
    reports.note(this.#describe(typeof verdict === 'string' ? verdict : verdict(), why))
  }

  #describe(verdict: RelayVerdict, why: string): RelayedFlow {
    const { reports, origin } = this.#reporter
    this.#id ||= reports.nextId()
    return {
      ...{ id: this.#id, family: origin.family, protocol: origin.protocol, port: this.#port },
      ...{ client: this.client, clientPort: this.clientPort, ...this.#readState() },
      ...{ endpoint: this.#endpoint, verdict, why, startedAt: this.#startedAt },
      endedAt: verdict === 'open' ? undefined : reports.now(),
    }
  }
}

export interface FlowClient {
  readonly ip: string
  readonly port: number
}
