// Turns records into the text that iptables-restore would get. Resolve, plan, ledger and writer are the real ones.

import type { Changes } from '../../../src/backend/backend.ts'
import { iptables } from '../../../src/backend/iptables/backend.ts'
import type { IptablesEntry } from '../../../src/backend/iptables/entries.ts'
import type { IptablesFeatures } from '../../../src/backend/iptables/features.ts'
import { RestoreWriter, type WriteResult } from '../../../src/backend/iptables/write/restore-writer.ts'
import { groupChanges } from '../../../src/backend/iptables/write/units.ts'
import { WrittenRules } from '../../../src/backend/iptables/write/written.ts'
import { Ledger } from '../../../src/backend/ledger.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { MemoryFile } from '../../../src/sys/process/memory-file.ts'
import { everyAddress, view } from '../../support/builders.ts'
import { diffAtOnce, settleAtOnce } from '../../support/ledger-at-once.ts'
import { resolve } from '../../support/resolve.ts'

export const allFeatures: IptablesFeatures = {
  randomFully: false,
  liberal: false,
  counters: new Set(['ct_state_invalid_dropped_pkts', 'localhost_nps_accepted_pkts']),
}

/** One lane; its kernel keeps the list of texts that it was given. */
export class WriterHarness {
  readonly texts: string[] = []
  readonly ledger = new Ledger<IptablesEntry>()
  readonly written = new WrittenRules()
  readonly writer: RestoreWriter<MemoryFile>
  readonly node: NodeView
  readonly #backend
  /** Throws where the programs would fail. */
  check: (text: string) => void = () => {}

  constructor(
    node: NodeView = view({ nodePorts: everyAddress }),
    { localhost = true, features = allFeatures, chainsPerRestore = Number.POSITIVE_INFINITY } = {},
  ) {
    this.node = node
    this.#backend = iptables({ syncPeriodMs: 30_000, localhostNodePorts: localhost, counters: false })
    this.writer = new RestoreWriter({
      written: this.written,
      chainsPerRestore,
      createSink: () => new MemoryFile('rules'),
      restore: async (input) => {
        const text = String(input)
        this.texts.push(text)
        this.check(text)
      },
    })
    this.written.features = features
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

  /** With `everything` the changes are taken as all that is wanted, as after an observation. */
  async sync({ everything = false } = {}): Promise<WriteResult & { readonly changes: Changes<IptablesEntry> }> {
    const changes = diffAtOnce(this.ledger)
    const { signal } = new AbortController()
    const written = await this.writer.write(groupChanges(changes), { everything, signal })
    settleAtOnce(
      this.ledger,
      changes,
      written.refused.map(({ id }) => id),
    )
    return { ...written, changes }
  }

  /** The last text that was restored. */
  get text(): string {
    return this.texts.at(-1) ?? ''
  }
}

/** The rules of one chain, in order. */
export const rulesOf = (text: string, chain: string): string[] =>
  text.split('\n').filter((line) => line.startsWith(`-A ${chain} `))
