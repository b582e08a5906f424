// What a proxy must offer to be run through the corpus, and how a runner declares where it differs on purpose.

import type { Family } from '../../src/lib/ip.ts'
import type { Protocol } from '../../src/model/types.ts'
import type { Expectation, Manifest, Mode, NodeSettings } from '../scenarios/format.ts'
import type { Namespace } from './namespace.ts'

export interface StartOptions {
  /** The namespace of the node: `node.path` is for `setns`, `node.name` for `ip netns exec`, `node.exec` runs a tool. */
  readonly node: Namespace
  readonly mode: Mode
  readonly families: readonly Family[]
  readonly settings: NodeSettings
  /** Every address of the node in the lab, of both families, loopback included. */
  readonly interfaceAddresses: readonly string[]
  /** Objects that the proxy has before its first sync, as after a restart. Default: none. */
  readonly initial?: readonly Manifest[]
}

/** Deletions come before additions and updates. */
export interface Change {
  readonly drop: readonly Manifest[]
  readonly put: readonly Manifest[]
}

/** One proxy in the namespace of the node. It is started and stopped once per scenario. */
export interface Driver {
  /** What the proxy does besides rules, and scenarios may need: `conntrack`. */
  readonly provides: readonly string[]
  /** True if the proxy listens on node ports itself. The lab then does not, and the node refuses a packet that passes. */
  readonly listens?: boolean
  start(start: StartOptions): Promise<void>
  apply(change: Change): Promise<void>
  /** Called when the node or the configuration changes: zone, service CIDRs. */
  reconfigure(settings: NodeSettings): Promise<void>
  /** Resolves when the kernel has everything that was applied. */
  settle(): Promise<void>
  /** Describes what the kernel still holds for services; empty when all services are gone. */
  holdings(): Promise<readonly string[]>
  /** Stops the proxy and removes its rules, so that the next scenario begins without them. */
  stop(): Promise<void>
}

export interface Deviation {
  readonly reason: string
  /** `S4*`: scenarios, twins included; `S1/F8`, `S10*` + `/S10?-9`: single packets. `*` is any text, `?` one character. */
  readonly scenarios: readonly string[]
  /** The packets that it concerns. Default: those of all protocols. */
  readonly protocol?: Protocol
  /** What happens to these packets instead. Without it the packets are not sent, and whole scenarios are skipped. */
  readonly instead?: Expectation
  /** The packets go where they should, but their source is rewritten (or kept), whatever the scenario says. */
  readonly snat?: boolean
}

function matches(pattern: string, text: string): boolean {
  const source = pattern
    .replace(/[.+^${}()|[\]\\]/g, '\\$&')
    .replaceAll('*', '.*')
    .replaceAll('?', '.')
  return new RegExp(`^${source}$`).test(text)
}

/** Returns the deviation of a whole scenario, or of one packet of it. A twin also matches by the name of its original. */
export function findDeviation(deviations: readonly Deviation[], scenario: string, packet = ''): Deviation | undefined {
  const plain = scenario.replace(/\.(v6|udp)/g, '')
  const texts = packet === '' ? [scenario, plain] : [`${scenario}/${packet}`, `${plain}/${packet}`]
  return deviations.find(({ scenarios }) =>
    scenarios.some((pattern) => pattern.includes('/') === (packet !== '') && texts.some((t) => matches(pattern, t))),
  )
}
