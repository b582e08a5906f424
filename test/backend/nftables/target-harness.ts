// One lane of the nftables backend over the fake kernel: resolve, plan, ledger, draft, encoder and target are the real ones.

import type { Applied, Held } from '../../../src/backend/backend.ts'
import { Ledger } from '../../../src/backend/ledger.ts'
import { base } from '../../../src/backend/nftables/base.ts'
import { decodeEndpoint, decodeKey, shapeOf } from '../../../src/backend/nftables/commit/set-codec.ts'
import type { NftEntry } from '../../../src/backend/nftables/entries.ts'
import { plan } from '../../../src/backend/nftables/plan.ts'
import { NftTarget } from '../../../src/backend/nftables/target.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { resolve } from '../../../src/model/resolve.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { view } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { diffAtOnce, resetAtOnce, settleAtOnce } from '../../support/ledger-at-once.ts'
import { FakeKernel } from './fake-kernel.ts'

const signal = new AbortController().signal
const owned = { owner: true, persist: true, destroy: true }

export class TargetHarness {
  readonly kernel: FakeKernel
  readonly clock = new FakeClock()
  readonly ledger = new Ledger<NftEntry>()
  readonly target: NftTarget
  readonly node: NodeView
  readonly due: number[] = []
  #trusted = false

  constructor(node: NodeView = view(), kernel = new FakeKernel()) {
    this.node = node
    this.kernel = kernel
    const context = {
      family: node.family,
      node,
      log: silentLogger,
      clock: this.clock,
      onDrift: () => {},
      onDue: () => this.due.push(this.clock.monotonic()),
    }
    this.target = new NftTarget(context, kernel.open(node.family), owned)
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

  /** As the lane does it. */
  async sync(): Promise<Applied> {
    const trusted = this.#trusted
    this.#trusted = false
    if (!trusted) resetAtOnce(this.ledger, await this.target.observe(signal))
    const changes = diffAtOnce(this.ledger)
    const applied = await this.target.apply(changes, signal, this.ledger.wanted())
    settleAtOnce(
      this.ledger,
      changes,
      applied.refused.map(({ id }) => id),
    )
    this.#trusted = true
    return applied
  }

  /** Somebody was here. */
  distrust(): void {
    this.#trusted = false
  }

  /** Messages of the batches that this made the kernel take. */
  async writes(work: () => Promise<unknown>): Promise<readonly (readonly string[])[]> {
    const before = this.kernel.batches.length
    await work()
    return this.kernel.batches.slice(before)
  }

  /** Two sweeps. */
  async rest(): Promise<void> {
    await this.clock.advance(5_000)
  }

  observe(): Promise<readonly Held[]> {
    return this.target.observe(signal)
  }
}

/** Everything the table holds, as text, whatever slot an endpoint has. */
export function contents({ kernel, node }: TargetHarness): readonly string[] {
  const { state } = kernel
  const lines: string[] = []
  for (const [name, { base: hook }] of state.chains) lines.push(`chain ${name} ${JSON.stringify(hook)}`)
  for (const [chain, rules] of state.rules) {
    for (const [i, { expressions, comment }] of rules.entries()) {
      const plain = JSON.stringify({ expressions, comment }, (_, value) =>
        typeof value === 'string' && value.startsWith('__map') ? anonymous(kernel, value) : value,
      )
      lines.push(`rule ${chain} ${i} ${plain}`)
    }
  }
  for (const [set, members] of state.elements) {
    if (set.startsWith('__map')) continue
    lines.push(`set ${set}`)
    for (const element of members.values()) lines.push(`element ${set} ${describe(set, element, node)}`)
  }
  return lines.sort()
}

const anonymous = ({ state }: FakeKernel, name: string) =>
  [...(state.elements.get(name)?.values() ?? [])].map(({ key, data }) => [Buffer.from(key).toString('hex'), data])

type Member = Parameters<
  Parameters<ReadonlyMap<string, import('../../../src/sys/netlink/nft/nft-types.ts').Element>['forEach']>[0]
>[0]

function describe(set: string, { key, keyEnd, data, comment }: Member, node: NodeView): string {
  if (set !== 'endpoints' && set !== 'nodeport-endpoints') {
    return `${Buffer.from(key).toString('hex')} ${keyEnd === undefined ? '' : Buffer.from(keyEnd).toString('hex')} ${JSON.stringify(data)} ${comment}`
  }
  const shape =
    set === 'endpoints'
      ? 'address . protocol . port . slot : address . port'
      : 'protocol . port . slot : address . port'
  const text = decodeKey(shapeOf(shape, node.family), node.family, Buffer.from(key), undefined) ?? 'no key'
  const space = text.lastIndexOf(' ')
  const kind = Number(text.slice(space + 1)) >= 0x4000_0000 ? 'local' : 'cluster'
  return `${text.slice(0, space)} ${kind} ${decodeEndpoint(node.family, Buffer.from(data as Uint8Array))}`
}
