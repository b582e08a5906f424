// Notices what other processes do to our table: changes, on kernels without table owners, and the end of a process that owns the table.

import type { Mutex } from '../../lib/mutex.ts'
import type { Timer } from '../../lib/time.ts'
import { familyNumber } from '../../sys/ip-numbers.ts'
import { TABLE_OWNER, type Table } from '../../sys/netlink/nft/nft-types.ts'
import { type NftablesSocket, watchRuleset } from '../../sys/netlink/nft/nftables.ts'
import type { Notice } from '../../sys/netlink/nft/read-objects.ts'
import type { Subscription } from '../../sys/netlink/subscribe.ts'
import type { DriftReason, OpenContext } from '../backend.ts'
import { tableName } from './base.ts'

/** Finds our table among all tables. */
export const findTable = (tables: readonly Table[], family: Table['family']): Table | undefined =>
  tables.find((table) => table.family === family && table.name === tableName)

/** Listens to the kernel's notifications, and reports changes that other processes make to our table. */
export class TableWatch {
  readonly #context: OpenContext
  /** Makes our own changes. Its number changes if the socket is lost and opened again. */
  readonly #nft: NftablesSocket
  readonly #family: number
  readonly #subscription: Subscription
  #hasDrifted = false
  /** Another process changed our table. The end of its commit names the process. */
  #isTouched = false

  constructor(nft: NftablesSocket, context: OpenContext) {
    this.#context = context
    this.#nft = nft
    this.#family = familyNumber(context.family)
    this.#subscription = watchRuleset({
      notice: (notice) => this.#read(notice),
      lost: (reason) => this.#report(`an unknown process; ${reason}`, 'reports-lost'),
    })
  }

  get hasDrifted(): boolean {
    return this.#hasDrifted
  }

  reset(): void {
    this.#hasDrifted = false
    this.#isTouched = false
  }

  close(): void {
    this.#subscription.close()
  }

  #read(notice: Notice): void {
    if (notice.port === this.#nft.port) return
    if (notice.kind === 'change') {
      this.#isTouched ||= notice.family === this.#family && notice.table === tableName
    } else if (this.#isTouched) this.#report(`${notice.program || 'a process'} (pid ${notice.pid})`, 'changed')
  }

  #report(culprit: string, reason: DriftReason): void {
    this.#isTouched = false
    this.#hasDrifted = true
    this.#context.onDrift(culprit, reason)
  }
}

const socketCheckMs = 10_000

/** Looks from time to time whether we still have the socket that owns the table: without it the kernel lets anyone change the table. */
export class OwnSocketCheck {
  #timer: Timer

  constructor(isLost: () => boolean, { clock, onDrift }: OpenContext) {
    const check = (): void => {
      if (isLost()) onDrift('an unknown process; the socket that owns the table was lost', 'reports-lost')
      this.#timer = clock.after(socketCheckMs, check)
    }
    this.#timer = clock.after(socketCheckMs, check)
  }

  close(): void {
    this.#timer.cancel()
  }
}

const ownerPollMs = 500

/** Asks for a sync as soon as no process owns the table any more. The owner may be our predecessor, which is about to end. */
export class OwnerPoll {
  readonly #context: OpenContext
  readonly #nft: NftablesSocket
  readonly #mutex: Mutex
  #timer: Timer | undefined
  #isClosed = false

  constructor(nft: NftablesSocket, context: OpenContext, mutex: Mutex) {
    this.#nft = nft
    this.#context = context
    this.#mutex = mutex
  }

  start(): void {
    this.#timer?.cancel()
    if (this.#isClosed) return
    this.#timer = this.#context.clock.after(ownerPollMs, () => {
      this.#mutex
        .run(() => this.#nft.tables())
        .then(
          (tables) => this.#decide(tables),
          () => this.start(),
        )
    })
  }

  close(): void {
    this.#isClosed = true
    this.#timer?.cancel()
  }

  #decide(tables: readonly Table[]): void {
    const flags = findTable(tables, this.#context.family)?.flags ?? 0
    if ((flags & TABLE_OWNER) !== 0) this.start()
    else if (!this.#isClosed) this.#context.onDue?.()
  }
}
