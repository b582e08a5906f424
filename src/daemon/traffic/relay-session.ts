// Reads flows from the relays of this process, where the mode has such. While someone looks, the relays report what begins and ends.

import type { FlowPlace, RelayedAddresses, RelayedFlow, RelayedFlows } from '../../backend/relayed-flows.ts'
import { FlowLog, type LoggedFlow, type RefusedPacket } from '../../engine/flows/flow-log.ts'
import { FlowSampler } from '../../engine/flows/flow-sampler.ts'
import { describeError } from '../../lib/errors.ts'
import { sleep } from '../../lib/time.ts'
import { isSampled } from '../../sys/flows/flow-events.ts'
import { type FollowedFrontends, followFrontends, openRefusals } from './flow-frontends.ts'
import type { FlowReading, FlowSession, FlowSources, SessionEvents } from './flow-session.ts'

const tickMs = 1_000
/** The most open flows that one watcher gets to begin with. */
const maxOpen = 10_000

export const readRelayFlows = (sources: FlowSources, relays: RelayedFlows): FlowReading => ({
  list: async () => ({ flows: [...relays.list()].map(toLogged), skipped: 0 }),
  open: (events) => new RelayFlowSession(sources, relays, events),
  locate: (flows) => locate(relays, flows),
  remarks: () => relays.remarks,
})

class RelayFlowSession implements FlowSession {
  readonly #sources: FlowSources
  readonly #relays: RelayedFlows
  readonly #events: SessionEvents
  readonly #sampler = new FlowSampler()
  /** Only flows that have ended: the relays hold the open ones. */
  readonly #log: FlowLog
  readonly #frontends: FollowedFrontends
  readonly #stopRelays: () => void
  readonly #abort = new AbortController()
  #lost = 0
  #skipped = 0
  #remark = ''

  constructor(sources: FlowSources, relays: RelayedFlows, events: SessionEvents) {
    this.#sources = sources
    this.#relays = relays
    this.#events = events
    this.#frontends = followFrontends(sources)
    const { index } = this.#frontends
    this.#log = new FlowLog({
      find: (destination) => index.find(destination),
      replyTimeoutMs: () => 0,
      emit: (flow) => events.flow(flow),
    })
    this.#stopRelays = relays.follow({
      selects: (port) => isSampled(port, this.#sampler.rate),
      note: (flow) => this.#note(flow),
    })
    this.#run().catch((error: unknown) => this.#fail(error))
    const refusals = {
      refused: (packet: RefusedPacket) => this.#log.refuse(packet, sources.clock.now()),
      lost: () => this.#noteLoss(),
    }
    openRefusals(sources, index, refusals, this.#abort.signal).catch((error: unknown) => this.#fail(error))
  }

  get sampled(): number {
    return this.#sampler.rate
  }

  get lost(): number {
    return this.#lost
  }

  get skipped(): number {
    return this.#skipped
  }

  get remark(): string {
    return this.#remark
  }

  list(): readonly LoggedFlow[] {
    const { rate } = this.#sampler
    return [...this.#listOpen(({ clientPort }) => isSampled(clientPort, rate)), ...this.#log.list()]
  }

  close(): void {
    this.#abort.abort()
    this.#stopRelays()
    this.#frontends.stop()
  }

  #note(flow: RelayedFlow): void {
    const logged = toLogged(flow)
    if (flow.verdict === 'open') this.#events.flow(logged)
    else this.#log.end(logged)
    // A client that is turned away has no begin.
    const isNew = flow.verdict === 'open' || flow.why !== ''
    if (isNew && this.#sampler.count()) this.#events.coverageChanged()
  }

  /** The relays lose no report; a packet that a rule refused may be missed. */
  #noteLoss(): void {
    this.#lost++
    this.#events.lost()
    this.#events.coverageChanged()
  }

  async #run(): Promise<void> {
    const { clock } = this.#sources
    for (const { signal } = this.#abort; !signal.aborted; ) {
      await sleep(clock, tickMs, signal)
      const before = this.#sampler.rate
      if (this.#sampler.tick()) this.#widen(before)
    }
  }

  /** A larger share is followed: shows the open flows that are new in it. */
  #widen(before: number): void {
    const { rate } = this.#sampler
    const isNew = ({ clientPort }: RelayedFlow) => isSampled(clientPort, rate) && !isSampled(clientPort, before)
    for (const flow of this.#listOpen(isNew)) this.#events.flow(flow)
    this.#events.coverageChanged()
  }

  #listOpen(selects: (flow: RelayedFlow) => boolean): readonly LoggedFlow[] {
    const found: LoggedFlow[] = []
    for (const flow of this.#relays.list()) {
      if (!selects(flow)) continue
      if (found.length < maxOpen) found.push(toLogged(flow))
      else this.#skipped++
    }
    return found
  }

  #fail(error: unknown): void {
    if (this.#abort.signal.aborted) return
    this.#remark = `Some flows are not shown: ${describeError(error)}.`
    this.#sources.log.warn('Flows cannot be followed completely', { error: describeError(error) })
    this.#events.coverageChanged()
  }
}

const idPrefix = 'relay-'

function toLogged(flow: RelayedFlow): LoggedFlow {
  const { id, family, protocol, client, clientPort, local, localPort, port } = flow
  const { endpoint, verdict, why, startedAt, endedAt, traffic } = flow
  return {
    ...{ id: `${idPrefix}${id.toString(36)}`, family, protocol, source: client, sourcePort: clientPort },
    ...{ destination: local, destinationPort: localPort, endpoint, verdict, rule: why, startedAt, endedAt, traffic },
    port: { name: port, service: port.split(':')[0] as string },
  }
}

async function locate(relays: RelayedFlows, flows: readonly LoggedFlow[]): Promise<readonly LoggedFlow[]> {
  const relayed = flows.filter(({ id }) => id.startsWith(idPrefix))
  if (relays.findPlaces === undefined || relayed.length === 0) return flows
  const found = await relays.findPlaces(relayed.map(toAddresses))
  const places = new Map<LoggedFlow, FlowPlace | undefined>(relayed.map((flow, i) => [flow, found[i]]))
  return flows.map((flow) => {
    const place = places.get(flow)
    return place === undefined ? flow : { ...flow, destination: place.ip, destinationPort: place.port }
  })
}

const toAddresses = (flow: LoggedFlow): RelayedAddresses => ({
  ...{ id: Number.parseInt(flow.id.slice(idPrefix.length), 36), family: flow.family, protocol: flow.protocol },
  ...{ client: flow.source, clientPort: flow.sourcePort, local: flow.destination, localPort: flow.destinationPort },
})
