// What endpoints have counted survives every write, sweep, kill and start: random histories over tables in memory, whose sums are known.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Changes } from '../../../../src/backend/backend.ts'
import type { CarriedSum } from '../../../../src/backend/iptables/count/carried-table.ts'
import { type CountedWrite, EndpointCounting } from '../../../../src/backend/iptables/count/counting.ts'
import { createPortEntry, type IptablesEntry, type PortEntry } from '../../../../src/backend/iptables/entries.ts'
import { RestoreWriter } from '../../../../src/backend/iptables/write/restore-writer.ts'
import { groupChanges } from '../../../../src/backend/iptables/write/units.ts'
import { WrittenRules } from '../../../../src/backend/iptables/write/written.ts'
import { hash32 } from '../../../../src/backend/names.ts'
import { silentLogger } from '../../../../src/lib/log.ts'
import { MemoryFile } from '../../../../src/sys/process/memory-file.ts'
import { FakeClock } from '../../../support/fake-clock.ts'

const { signal } = new AbortController()

const addressOf = (host: number): string => `10.0.0.${host}:80`
const chainOf = (name: string, host: number): string => `KUBE-SEP-${hash32(`ns/${name}:ptcp${addressOf(host)}`, 16)}`

/** A port with a chain for each endpoint. */
function portOf(name: string, hosts: readonly number[], hasAffinity = false): PortEntry {
  const svc = `KUBE-SVC-${name}`
  const own = hosts.flatMap((host) => {
    const chain = chainOf(name, host)
    const recent = hasAffinity ? ` -m recent --name ${chain} --set` : ''
    return [`-A ${svc} -j ${chain}`, `-A ${chain}${recent} -m tcp -p tcp -j DNAT --to-destination ${addressOf(host)}`]
  })
  const chains = [svc, ...hosts.map((host) => chainOf(name, host))]
  const shared = [`-A KUBE-SERVICES -j ${svc}`]
  const rules = { chains, shared, counted: 0, own, filter: [], unreached: 0 }
  return createPortEntry({ id: `ns/${name}:p/tcp`, service: `ns/${name}` }, rules, hosts.length)
}

/** The chains of endpoints and the table of sums, as a kernel holds them. */
class Kernel {
  readonly chains = new Map<string, { count: number; rules: string[] }>()
  sums: readonly CarriedSum[] = []

  restore(text: string): void {
    for (const line of text.split('\n')) {
      const [, name = ''] = /^(?::|-X |(?:\[\d+:0\] )?-A )(KUBE-SEP-\S+)/.exec(line) ?? []
      if (name === '') continue
      if (line.startsWith(':')) this.chains.set(name, { count: 0, rules: [] })
      else if (line.startsWith('-X ')) this.chains.delete(name)
      else {
        const chain = this.chains.get(name) as { count: number; rules: string[] }
        chain.count = Number(/^\[(\d+):/.exec(line)?.[1] ?? 0)
        chain.rules.push(line)
      }
    }
  }

  read = async () => new Map([...this.chains].map(([name, { count }]) => [name, count]))
}

/** A proxy without programs: the parts of the target that count. */
class MemoryProxy {
  readonly counting: EndpointCounting
  readonly #kernel: Kernel
  readonly #written = new WrittenRules()
  readonly #writer: RestoreWriter<MemoryFile>
  readonly #clock = new FakeClock()

  constructor(kernel: Kernel) {
    this.#kernel = kernel
    this.counting = new EndpointCounting({
      family: 4,
      clock: this.#clock,
      log: silentLogger,
      written: this.#written,
      counters: { readAll: kernel.read, readSome: kernel.read, close: () => {} },
      table: {
        read: async () => kernel.sums,
        write: async (sums) => {
          kernel.sums = sums
          return true
        },
        close: () => {},
      },
      listRules: async (chain) => kernel.chains.get(chain)?.rules ?? [],
    })
    this.#writer = new RestoreWriter({
      written: this.#written,
      chainsPerRestore: Number.POSITIVE_INFINITY,
      createSink: () => new MemoryFile('rules'),
      restore: async (input) => kernel.restore(String(input)),
    })
  }

  async writeAll(ports: readonly PortEntry[]): Promise<void> {
    const write = this.counting.keepNone({ put: ports, drop: [] })
    await this.counting.beginFull(write, signal)
    // The ledger names chains that no entry has.
    const strays = [...this.#kernel.chains.keys()].filter((chain) => !ports.some(({ rules }) => rules.declares(chain)))
    const drop = strays.map((chain) => ({ id: `nat ${chain}`, kind: 'chain', digest: '' }))
    await this.#restore({ put: ports, drop }, { everything: true })
    await this.counting.end(write, true, () => true)
  }

  async change(changes: Changes<IptablesEntry>): Promise<void> {
    await this.#write(this.counting.keep(changes))
  }

  /** Ends early as if the process were killed. */
  async sweep(until: 'end' | 'begun' | 'restored' = 'end'): Promise<void> {
    const chains = this.counting.lingering.listSince(this.#clock.monotonic())
    await this.#write(this.counting.sweep(chains, await this.#kernel.read()), until)
  }

  async total(port: PortEntry): Promise<number> {
    return (await this.counting.read()).find((one) => `${one.port}/tcp` === port.id)?.connections ?? 0
  }

  async #write(write: CountedWrite, until: 'end' | 'begun' | 'restored' = 'end'): Promise<void> {
    await this.counting.begin(write, signal)
    if (until === 'begun') return
    await this.#restore(write.kept.changes, { everything: false, deletesOnly: write.leaving.size > 0 })
    if (until === 'end') await this.counting.end(write, false, () => true)
  }

  async #restore(changes: Changes<IptablesEntry>, how: { everything: boolean; deletesOnly?: boolean }): Promise<void> {
    const { refused } = await this.#writer.write(groupChanges(changes), {
      ...how,
      countOf: this.counting.countOf,
      signal,
    })
    expect(refused).toEqual([])
  }
}

type Step =
  | { readonly do: 'change'; readonly hosts: readonly number[]; readonly affinity: boolean }
  | { readonly do: 'connect'; readonly count: number }
  | { readonly do: 'sweep' | 'writeAll' | 'read' }
  | { readonly do: 'kill'; readonly until: 'begun' | 'restored' | 'end'; readonly hosts: readonly number[] }

const hosts = fc.uniqueArray(fc.integer({ min: 1, max: 5 }), { maxLength: 4 })
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant('change' as const), hosts, affinity: fc.boolean() }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('connect' as const), count: fc.integer({ min: 1, max: 9 }) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('sweep' as const) }) },
  fc.record({ do: fc.constantFrom('writeAll' as const, 'read' as const) }),
  fc.record({ do: fc.constant('kill' as const), until: fc.constantFrom('begun', 'restored', 'end'), hosts }),
)

/** Runs a history, and checks the sums of two services after each step. */
async function play(steps: readonly Step[]): Promise<void> {
  const kernel = new Kernel()
  const other = portOf('other', [1, 2])
  let port = portOf('web', [1])
  let proxy = new MemoryProxy(kernel)
  await proxy.writeAll([port, other])
  let made = 0
  for (const [i, one] of steps.entries()) {
    if (one.do === 'connect') {
      for (const [, endpoint] of port.rules.destinations()) {
        const chain = kernel.chains.get(chainOf('web', Number(/\.(\d+):/.exec(endpoint)?.[1])))
        if (chain === undefined) throw new Error(`no chain for ${endpoint}`)
        chain.count += one.count
        made += one.count
      }
    } else if (one.do === 'change') {
      port = portOf('web', one.hosts, one.affinity)
      await proxy.change({ put: [port], drop: [] })
    } else if (one.do === 'sweep') await proxy.sweep()
    else if (one.do === 'writeAll') await proxy.writeAll([port, other])
    else if (one.do === 'kill') {
      await proxy.sweep(one.until)
      proxy = new MemoryProxy(kernel)
      port = portOf('web', one.hosts)
      await proxy.writeAll([port, other])
    }
    expect([await proxy.total(port), await proxy.total(other)], `after step ${i}, ${one.do}`).toEqual([made, 0])
  }
  await proxy.sweep()
  const wanted = [...port.rules.chains(), ...other.rules.chains()].filter((chain) => chain.startsWith('KUBE-SEP-'))
  expect([...kernel.chains.keys()].sort()).toEqual(wanted.sort())
  expect(await proxy.total(port)).toBe(made)
}

describe('EndpointCounting', () => {
  it('keeps every count over any history of changes, sweeps, full writes and kills', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 14 }), (steps) => play(steps)),
      { numRuns: 100 },
    )
  })

  it('counts on from the sum if another program resets counters', async () => {
    const kernel = new Kernel()
    const port = portOf('web', [1])
    const proxy = new MemoryProxy(kernel)
    await proxy.writeAll([port])
    const chain = kernel.chains.get(chainOf('web', 1)) as { count: number }
    chain.count = 7
    expect(await proxy.total(port)).toBe(7)
    chain.count = 2
    expect(await proxy.total(port)).toBe(9)
    await proxy.writeAll([port])
    expect([...kernel.chains.values()].map(({ count }) => count)).toEqual([9])
  })

  it('forgets the count of a service that goes', async () => {
    const kernel = new Kernel()
    const port = portOf('web', [1, 2])
    const proxy = new MemoryProxy(kernel)
    await proxy.writeAll([port])
    for (const chain of kernel.chains.values()) chain.count = 5
    await proxy.change({ put: [portOf('web', [1])], drop: [] })
    await proxy.sweep()
    expect(await proxy.total(port)).toBe(10)
    await proxy.change({ put: [], drop: [port] })
    await proxy.change({ put: [port], drop: [] })
    expect(await proxy.total(port)).toBe(0)
  })
})
