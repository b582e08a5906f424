// Reports service CIDRs that contain an address of this node or of the API server, with a log line and an Event on the Node.

import type { EventRecorder } from '../../kube/events.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { findCidrOverlaps } from '../../model/reserved-addresses.ts'
import type { NodeView } from '../../model/types.ts'

export interface CidrOverlapsOptions {
  readonly recorder: Pick<EventRecorder, 'record'>
  /** Name of this node. */
  readonly node: string
  readonly log: Logger
}

export class CidrOverlaps {
  readonly #options: CidrOverlapsOptions
  /** The overlaps that were reported and have not ended. */
  readonly #known = new Map<Family, ReadonlySet<string>>()

  constructor(options: CidrOverlapsOptions) {
    this.#options = options
  }

  /** Reports each overlap once, and again after it has ended. */
  check(view: NodeView, interfaceAddresses: readonly string[]): void {
    const { recorder, node, log } = this.#options
    const known = this.#known.get(view.family)
    const overlaps = findCidrOverlaps(view, interfaceAddresses)
    const texts = overlaps.map(({ cidr, address }) => `the service CIDR ${cidr} contains ${address}`)
    this.#known.set(view.family, new Set(texts))
    for (const [i, note] of texts.entries()) {
      if (known?.has(note)) continue
      log.error('A service CIDR contains an address that is not of a service', { ...overlaps[i] })
      recorder.record({
        type: 'Warning',
        reason: 'ServiceCIDROverlap',
        action: 'ReadObject',
        note,
        regarding: { apiVersion: 'v1', kind: 'Node', namespace: '', name: node },
      })
    }
  }
}
