// Reports packets that a rule rejects or drops, while someone follows flows. Connection tracking never hears of them, so the kernel traces a
// share of the new connections: in the filter hooks those that no rule has translated, before translation a few of all.

import type { Family } from '../../lib/ip.ts'
import { protocolOfNumber } from '../../sys/ip-numbers.ts'
import { type MarkRule, type TracedHeader, type TraceEvent, tracePackets } from '../../sys/netlink/nft/packet-traces.ts'
import { TracedRules } from '../../sys/netlink/nft/traced-rules.ts'
import type { RefusalListener, RefusalSource } from './flow-session.ts'

const tableName = 'sluice-flows'
/** Connections per second that are traced in each filter hook, if they are not translated: they may be refused. */
const untranslatedPerSecond = 100
/** Connections per second that are traced before translation, where source ranges and Local policies drop. */
const anyPerSecond = 20
/** The most packets on their way whose headers are kept. */
const maxPackets = 1_000

/** The priorities are just before those of the chains of service proxies. */
function marksFor(family: Family): readonly MarkRule[] {
  const hooks = ['input', 'forward', 'output'] as const
  return [
    ...hooks.map((hook) => ({ family, hook, priority: -1, perSecond: untranslatedPerSecond, untranslated: true })),
    { family, hook: 'prerouting', priority: -111, perSecond: anyPerSecond },
    { family, hook: 'output', priority: -111, perSecond: anyPerSecond },
  ]
}

export const watchRefusals =
  (families: readonly Family[]): RefusalSource =>
  async (listener) => {
    const rules = new TracedRules()
    const watch = new RefusalWatch(rules, listener)
    const events = { event: (event: TraceEvent) => watch.note(event), lost: () => listener.lost() }
    try {
      const trace = await tracePackets(tableName, families.flatMap(marksFor), events)
      return {
        close() {
          trace.close()
          rules.close()
        },
      }
    } catch (error) {
      rules.close()
      throw error
    }
  }

class RefusalWatch {
  readonly #rules: TracedRules
  readonly #listener: RefusalListener
  readonly #packets = new Map<number, TracedHeader>()

  constructor(rules: TracedRules, listener: RefusalListener) {
    this.#rules = rules
    this.#listener = listener
  }

  note(event: TraceEvent): void {
    if (event.packet !== undefined && !this.#packets.has(event.id)) this.#keep(event.id, event.packet)
    if (event.verdict !== 'drop') return
    const header = this.#packets.get(event.id)
    this.#packets.delete(event.id)
    // A rule that cannot be read hides a refused packet: that counts as a loss.
    if (header !== undefined) void this.#report(event, header).catch(() => this.#listener.lost())
  }

  #keep(id: number, header: TracedHeader): void {
    const [oldest] = this.#packets.keys()
    if (this.#packets.size >= maxPackets && oldest !== undefined) this.#packets.delete(oldest)
    this.#packets.set(id, header)
  }

  async #report(event: TraceEvent, header: TracedHeader): Promise<void> {
    const protocol = protocolOfNumber(header.protocol)
    if (protocol === undefined) return
    const details = event.kind === 'rule' ? await this.#rules.find(event) : undefined
    const isRejected = details?.actions.some((action) => action.toLowerCase() === 'reject') === true
    this.#listener.refused({
      ...header,
      protocol,
      verdict: isRejected ? 'rejected' : 'dropped',
      rule: nameRule(event, details?.comment),
    })
  }
}

/** `ip kube-proxy firewall-check (loadBalancerSourceRanges)`. */
export function nameRule({ table, chain, kind }: Pick<TraceEvent, 'table' | 'chain' | 'kind'>, comment = ''): string {
  const place = `${table} ${chain}`
  if (kind === 'policy') return `${place} (its policy)`
  return comment === '' ? place : `${place} (${comment})`
}
