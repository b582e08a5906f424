// What a proxy must offer to be run through the corpus, and how a runner says where it differs on purpose.

import type { Family } from '../../src/lib/ip.ts'
import type { Expectation, Manifest, Mode, NodeSettings } from '../scenarios/format.ts'
import type { Namespace } from './namespace.ts'

export interface Start {
  /** The namespace of the node: `node.path` for `setns`, `node.name` for `ip netns exec`, `node.exec` to run a tool. */
  readonly node: Namespace
  readonly mode: Mode
  readonly families: readonly Family[]
  readonly settings: NodeSettings
  /** Every address of the node in the lab, of both families, loopback included. */
  readonly interfaceAddresses: readonly string[]
  /** What the proxy knows before its first sync, as after a restart; default: nothing. */
  readonly initial?: readonly Manifest[]
}

/** Events in order: first the deletions, then the additions and updates. */
export interface Change {
  readonly drop: readonly Manifest[]
  readonly put: readonly Manifest[]
}

/** One proxy in the node's namespace. Started and stopped once per scenario. */
export interface Driver {
  /** What scenarios may need beyond rules: `conntrack`. */
  readonly provides: readonly string[]
  /** The proxy listens on node ports itself, so the lab must not: a packet that passes is then refused by the node. */
  readonly listens?: boolean
  start(start: Start): Promise<void>
  apply(change: Change): Promise<void>
  /** The node or the configuration changed: zone, service CIDRs. */
  reconfigure(settings: NodeSettings): Promise<void>
  /** Returns when the kernel has everything that was applied. */
  settle(): Promise<void>
  /** What the kernel still holds for services, in words; empty when all services are gone. */
  holdings(): Promise<readonly string[]>
  /** Ends the proxy and takes its rules away, so that the next scenario begins clean. */
  stop(): Promise<void>
}

export interface Deviation {
  readonly reason: string
  /** `S4*`: scenarios, twins included; `S1/F8`, `S10*` + `/S10?-9`: single packets. `*` is any text, `?` one character. */
  readonly scenarios: readonly string[]
  /** What happens to those packets instead. Without it they are not sent, and whole scenarios are skipped. */
  readonly instead?: Expectation
  /** They go where they should, but the source is rewritten, or kept, whatever the scenario says. */
  readonly snat?: boolean
}

function matches(pattern: string, text: string): boolean {
  const source = pattern
    .replace(/[.+^${}()|[\]\\]/g, '\\$&')
    .replaceAll('*', '.*')
    .replaceAll('?', '.')
  return new RegExp(`^${source}$`).test(text)
}

/** The deviation that concerns a whole scenario, or one packet of it. Twins go by the name of what they are twins of. */
export function findDeviation(deviations: readonly Deviation[], scenario: string, packet = ''): Deviation | undefined {
  const plain = scenario.replace(/\.(v6|udp)/g, '')
  const texts = packet === '' ? [scenario, plain] : [`${scenario}/${packet}`, `${plain}/${packet}`]
  return deviations.find(({ scenarios }) =>
    scenarios.some((pattern) => pattern.includes('/') === (packet !== '') && texts.some((t) => matches(pattern, t))),
  )
}
