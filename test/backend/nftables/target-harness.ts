// Runs the real plan, ledger, encoder and target of nftables mode over the fake kernel, as a lane of the engine does.

import type { Applied, Changes, Held } from '../../../src/backend/backend.ts'
import { Ledger } from '../../../src/backend/ledger.ts'
import { base } from '../../../src/backend/nftables/base.ts'
import { SetCodec } from '../../../src/backend/nftables/commit/set-codec.ts'
import type { NftEntry } from '../../../src/backend/nftables/entries.ts'
import { plan } from '../../../src/backend/nftables/plan.ts'
import { localSlots } from '../../../src/backend/nftables/rules.ts'
import { NftTarget } from '../../../src/backend/nftables/target.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import type { Element } from '../../../src/sys/netlink/nft/nft-types.ts'
import { view } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { diffAtOnce, resetAtOnce, settleAtOnce } from '../../support/ledger-at-once.ts'
import { resolve } from '../../support/resolve.ts'
import { FakeKernel, type FakeNftables } from './fake-kernel.ts'

const signal = new AbortController().signal
const owned = { owner: true, persist: true, destroy: true, counters: false }

export class TargetHarness {
  readonly kernel: FakeKernel
  readonly clock = new FakeClock()
  readonly ledger = new Ledger<NftEntry>()
  readonly target: NftTarget
  readonly node: NodeView
  readonly due: number[] = []
  readonly drifts: string[] = []
  readonly socket: FakeNftables
  /** True if the target should pause after every transaction. */
  pauses = false
  #isTrusted = false

  constructor(node: NodeView = view(), kernel = new FakeKernel()) {
    this.node = node
    this.kernel = kernel
    const context = {
      family: node.family,
      node,
      log: silentLogger,
      clock: this.clock,
      onDrift: (culprit: string) => this.drifts.push(culprit),
      onDue: () => this.due.push(this.clock.monotonic()),
      shouldPause: () => this.pauses,
    }
    this.socket = kernel.open(node.family)
    this.target = new NftTarget(context, this.socket, owned)
    this.ledger.want('', base(node))
  }

  put(service: ServiceRecord, ...slices: SliceRecord[]): void {
    const ports = resolve(service, slices, this.node)
    this.ledger.want(
      service.key,
      ports.flatMap((port) => plan(port, this.node)),
    )
  }

  drop(service: string): void {
    this.ledger.want(service, [])
  }

  /** Syncs as the lane does: observes the kernel unless the last sync went well, then applies the difference. */
  async sync(): Promise<Applied> {
    const isTrusted = this.#isTrusted
    this.#isTrusted = false
    if (!isTrusted) resetAtOnce(this.ledger, await this.target.observe(signal))
    const changes = diffAtOnce(this.ledger)
    return this.#settle(await this.target.apply(changes, signal, this.ledger.wanted()), changes)
  }

  /** Goes on after a pause. */
  async resume({ resume }: Applied): Promise<Applied> {
    return this.#settle((await resume?.(signal)) ?? { refused: [] }, { put: [], drop: [] })
  }

  #settle(applied: Applied, changes: Changes<NftEntry>): Applied {
    const { written = changes, refused } = applied
    settleAtOnce(
      this.ledger,
      written as Changes<NftEntry>,
      refused.map(({ id }) => id),
    )
    this.#isTrusted = true
    return applied
  }

  /** Makes the next sync observe the kernel, as a report of drift does. */
  distrust(): void {
    this.#isTrusted = false
  }

  /** Returns the messages of the batches that the kernel commits during `work`. */
  async writes(work: () => Promise<unknown>): Promise<readonly (readonly string[])[]> {
    const before = this.kernel.batches.length
    await work()
    return this.kernel.batches.slice(before)
  }

  /** Waits until everything that fell out of use is swept; thousands of slots take several sweeps. */
  async sweepAll(): Promise<void> {
    await this.clock.advance(20_000)
  }

  observe(): Promise<readonly Held[]> {
    return this.target.observe(signal)
  }
}

/** Lists all that the table holds, as text, regardless of which slot an endpoint has. */
export function listContents({ kernel, node }: TargetHarness): readonly string[] {
  const { state } = kernel
  const lines: string[] = []
  for (const [name, { base: hook }] of state.chains) lines.push(`chain ${name} ${JSON.stringify(hook)}`)
  for (const [chain, rules] of state.rules) {
    for (const [i, { expressions, comment }] of rules.entries()) {
      const plain = JSON.stringify({ expressions, comment }, (_, value) =>
        typeof value === 'string' && value.startsWith('__map') ? listAnonymousMap(kernel, value) : value,
      )
      lines.push(`rule ${chain} ${i} ${plain}`)
    }
  }
  for (const [set, members] of state.elements) {
    if (set.startsWith('__map')) continue
    lines.push(`set ${set}`)
    for (const element of members.values()) lines.push(`element ${set} ${describeElement(set, element, node)}`)
  }
  return lines.sort()
}

const listAnonymousMap = ({ state }: FakeKernel, name: string) =>
  [...(state.elements.get(name)?.values() ?? [])].map(({ key, data }) => [Buffer.from(key).toString('hex'), data])

function describeElement(set: string, { key, keyEnd, data, comment }: Element, node: NodeView): string {
  const bytes = Buffer.from(key)
  if (set !== 'endpoints' && set !== 'nodeport-endpoints') {
    const end = keyEnd === undefined ? '' : Buffer.from(keyEnd).toString('hex')
    return `${bytes.toString('hex')} ${end} ${JSON.stringify(data)} ${comment}`
  }
  const isNodePort = set === 'nodeport-endpoints'
  const shape = isNodePort
    ? 'protocol . port . slot : address . port'
    : 'address . protocol . port . slot : address . port'
  const codec = new SetCodec(shape, node.family)
  const kind = codec.readSlot(bytes) >= localSlots ? 'local' : 'cluster'
  return `${codec.readKey(bytes)} ${kind} ${codec.readEndpoint(Buffer.from(data as Uint8Array))}`
}
