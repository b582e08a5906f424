// From records to the text that iptables-restore would get: resolve, plan, ledger and writer are the real ones.

import type { Changes } from '../../../src/backend/backend.ts'
import { iptables } from '../../../src/backend/iptables/backend.ts'
import type { IptEntry } from '../../../src/backend/iptables/entries.ts'
import type { IptablesFeatures } from '../../../src/backend/iptables/features.ts'
import { unitsOf } from '../../../src/backend/iptables/target.ts'
import { RestoreWriter, type WriteResult } from '../../../src/backend/iptables/writer.ts'
import { WrittenRules } from '../../../src/backend/iptables/written.ts'
import { Ledger } from '../../../src/backend/ledger.ts'
import { resolve } from '../../../src/model/resolve.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { MemoryFile } from '../../../src/sys/process/memory-file.ts'
import { everyAddress, view } from '../../support/builders.ts'
import { diffAtOnce, settleAtOnce } from '../../support/ledger-at-once.ts'

export const allFeatures: IptablesFeatures = {
  randomFully: false,
  liberal: false,
  counters: new Set(['ct_state_invalid_dropped_pkts', 'localhost_nps_accepted_pkts']),
}

/** One lane whose kernel is the list of texts it was given. */
export class WriterHarness {
  readonly texts: string[] = []
  readonly ledger = new Ledger<IptEntry>()
  readonly book = new WrittenRules()
  readonly writer: RestoreWriter<MemoryFile>
  readonly node: NodeView
  readonly #backend
  /** Throws where the programs would. */
  judge: (text: string) => void = () => {}

  constructor(
    node: NodeView = view({ nodePorts: everyAddress }),
    { localhost = true, features = allFeatures, chainsPerRestore = Number.POSITIVE_INFINITY } = {},
  ) {
    this.node = node
    this.#backend = iptables({ syncPeriodMs: 30_000, localhostNodePorts: localhost })
    this.writer = new RestoreWriter({
      book: this.book,
      chainsPerRestore,
      sheet: () => new MemoryFile('rules'),
      restore: async (paper) => {
        const text = String(paper)
        this.texts.push(text)
        this.judge(text)
      },
    })
    this.book.features = features
    this.ledger.want('', this.#backend.base(node))
  }

  put(service: ServiceRecord, ...slices: SliceRecord[]): void {
    const ports = resolve(service, slices, this.node)
    this.ledger.want(
      service.key,
      ports.flatMap((port) => this.#backend.plan(port, this.node)),
    )
  }

  drop(service: string): void {
    this.ledger.want(service, [])
  }

  async sync(): Promise<WriteResult & { readonly changes: Changes<IptEntry> }> {
    const changes = diffAtOnce(this.ledger)
    const written = await this.writer.write(unitsOf(changes), new AbortController().signal)
    settleAtOnce(
      this.ledger,
      changes,
      written.refused.map(({ id }) => id),
    )
    return { ...written, changes }
  }

  /** The last text. */
  get text(): string {
    return this.texts.at(-1) ?? ''
  }
}

/** The rules of one chain, in order. */
export const rulesOf = (text: string, chain: string): string[] =>
  text.split('\n').filter((line) => line.startsWith(`-A ${chain} `))
