// On kernels without table owners: hears of every foreign change to our table, and says who it was.

import { familyNumber } from '../../sys/netlink/nft/nft-types.ts'
import { watchRuleset } from '../../sys/netlink/nft/nftables.ts'
import type { Subscription } from '../../sys/netlink/subscribe.ts'
import type { OpenContext } from '../backend.ts'
import { tableName } from './base.ts'

export class TableGuard {
  readonly #context: OpenContext
  readonly #subscription: Subscription
  #drifted = false
  /** A change to our table was told; who made it comes with the end of the commit. */
  #touched = false

  /** `own` is the number of the socket that makes our own changes. */
  constructor(own: number, context: OpenContext) {
    this.#context = context
    const family = familyNumber(context.family)
    this.#subscription = watchRuleset({
      notice: (notice) => {
        if (notice.port === own) return
        if (notice.kind === 'change') this.#touched ||= notice.family === family && notice.table === tableName
        else if (this.#touched) this.#drift(`${notice.program || 'a process'} (pid ${notice.pid})`)
      },
      lost: () => this.#drift('somebody; notifications were lost'),
    })
  }

  get drifted(): boolean {
    return this.#drifted
  }

  reset(): void {
    this.#drifted = false
    this.#touched = false
  }

  close(): void {
    this.#subscription.close()
  }

  #drift(culprit: string): void {
    this.#touched = false
    this.#drifted = true
    this.#context.onDrift(culprit)
  }
}
