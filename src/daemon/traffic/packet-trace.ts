// Follows real packets to an address through the rules of this node, for a bounded time and number, and compares them with `explain`.

import type { Explanation, Question } from '../../http/admin.ts'
import type { TraceAnswers, TraceQuestion, TraceReport } from '../../http/admin-trace.ts'
import { compareWithForetold, type TracedDecision, tellStory } from '../../inspect/traced-story.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { familyOf, hostPort } from '../../lib/ip.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import { protocolNumbers, protocolOfNumber } from '../../sys/ip-numbers.ts'
import { type MarkRule, type TracedHeader, type TraceEvent, tracePackets } from '../../sys/netlink/nft/packet-traces.ts'
import { TracedRules } from '../../sys/netlink/nft/traced-rules.ts'
import { platform } from '../../sys/platform/platform.ts'

export interface TraceOptions {
  readonly explain: (question: Question) => Promise<readonly Explanation[]>
  /** Why this mode cannot be traced; '' if it can. */
  readonly obstacle: string
  readonly clock: Clock
}

/** A packet passes all hooks within microseconds, unless it is queued. */
const quietMs = 300
const pollMs = 100
/** Marked packets per second: a client that sends much must not flood the proxy. */
const perSecond = 5
const maxTargets = 50
const maxEvents = 2_000
/** After connection tracking, before everything that refuses or translates. */
const priority = -199

export const makeTraces = (options: TraceOptions): TraceAnswers => ({
  trace(question, send) {
    if (options.obstacle !== '') throw new ProxyError('question', options.obstacle)
    if (!platform.tracksConnections) throw new ProxyError('question', 'this system has no rules to trace')
    const stop = new AbortController()
    const { clock } = options
    // The stream must be open before the first report.
    clock.after(0, () => void new PacketTrace(options, question, send).run(stop.signal))
    return () => stop.abort()
  },
})

let traces = 0

class PacketTrace {
  readonly #options: TraceOptions
  readonly #question: TraceQuestion
  readonly #send: (report: TraceReport) => void
  readonly #rules = new TracedRules()
  readonly #name = `sluice-trace-${process.pid}-${++traces}`
  readonly #events = new Map<number, { readonly list: TraceEvent[]; at: number }>()
  #marks: readonly MarkRule[] = []
  #sent = 0
  #lost = 0

  constructor(options: TraceOptions, question: TraceQuestion, send: (report: TraceReport) => void) {
    this.#options = options
    this.#question = question
    this.#send = send
  }

  /** Never rejects: a problem is the last report. */
  async run(signal: AbortSignal): Promise<void> {
    let problem = ''
    try {
      await this.#follow(signal)
    } catch (error) {
      problem = describeError(error)
    } finally {
      this.#rules.close()
    }
    if (!signal.aborted) this.#send({ kind: 'ended', packets: this.#sent, lost: this.#lost, problem })
  }

  async #follow(signal: AbortSignal): Promise<void> {
    const { clock, explain } = this.#options
    const { target, from, seconds, packets } = this.#question
    const explained = (await explain({ target, from })).slice(0, maxTargets)
    if (explained.length === 0) throw new ProxyError('question', `${target} has no address of that family here`)
    this.#marks = explained.flatMap((one) => marksFor(one, from))
    const trace = await tracePackets(this.#name, this.#marks, {
      event: (event) => this.#note(event),
      lost: () => void this.#lost++,
    })
    try {
      this.#send({ kind: 'waiting', targets: explained.map(nameTarget), seconds })
      const end = clock.monotonic() + seconds * 1000
      while (!signal.aborted && clock.monotonic() < end && this.#sent < packets) {
        await sleep(clock, pollMs, signal).catch(() => {})
        await this.#report(packets)
      }
    } finally {
      trace.close()
    }
  }

  #note(event: TraceEvent): void {
    if (event.table.endsWith(` ${this.#name}`) && event.packet === undefined) return
    const at = this.#options.clock.monotonic()
    const known = this.#events.get(event.id)
    if (known === undefined) {
      // Other traces and followers of flows mark packets as well, which pass the own chain, too.
      const isOwn = event.table.endsWith(` ${this.#name}`) && this.#isAskedFor(event.packet)
      if (isOwn) this.#events.set(event.id, { list: [event], at })
    } else if (known.list.length < maxEvents) {
      known.list.push(event)
      known.at = at
    }
  }

  #isAskedFor(packet: TracedHeader | undefined): boolean {
    return this.#marks.some(
      ({ destination, destinationPort, protocol, source = packet?.source }) =>
        destination === packet?.destination &&
        destinationPort === packet?.destinationPort &&
        protocol === packet?.protocol &&
        source === packet?.source,
    )
  }

  /** Reports the packets whose last event came some time ago. */
  async #report(packets: number): Promise<void> {
    const now = this.#options.clock.monotonic()
    for (const [id, { list, at }] of this.#events) {
      if (now - at < quietMs || this.#sent >= packets) continue
      this.#events.delete(id)
      await this.#tell(list)
    }
  }

  async #tell(events: readonly TraceEvent[]): Promise<void> {
    const protocol = protocolOfNumber(events.find(({ packet }) => packet !== undefined)?.packet?.protocol ?? 0)
    const decisions: TracedDecision[] = []
    for (const event of events) {
      const isMark = isMarkTable(event.table)
      const details = event.kind === 'rule' && !isMark ? await this.#rules.find(event) : undefined
      const { comment = '', actions = [] } = details ?? {}
      decisions.push({ ...event, ...(isMark ? { kind: 'return' as const } : {}), comment, actions })
    }
    const seen = protocol === undefined ? undefined : tellStory(decisions, protocol)
    const header = events.find(({ packet }) => packet !== undefined)?.packet
    if (seen === undefined || header === undefined) return
    const [foretold] = await this.#options.explain({ target: `${seen.to}/${seen.protocol}`, from: header.source })
    this.#sent++
    const differences = compareWithForetold(seen, foretold)
    this.#send({ kind: 'packet', packet: { ...seen, foretold: foretold ?? null, differences } })
  }
}

/** The temporary tables of the proxy that mark packets are not part of the story. */
const isMarkTable = (table: string): boolean => / sluice-(?:flows|trace-[\d-]+)$/.test(table)

const nameTarget = ({ packet }: Explanation): string => `${hostPort(packet.to, packet.port)}/${packet.protocol}`

function marksFor({ packet }: Explanation, from: string): readonly MarkRule[] {
  const tuple = { destination: packet.to, destinationPort: packet.port, protocol: protocolNumbers[packet.protocol] }
  const source = from === '' || from === 'node' ? {} : { source: packet.from }
  const family = familyOf(packet.to)
  return (['prerouting', 'output'] as const).map((hook) => ({ family, hook, priority, perSecond, ...source, ...tuple }))
}
