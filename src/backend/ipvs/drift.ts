// Decides whether someone else changed what this mode wrote, and checks for that twice a second.
//
// Each part of the data plane shows changes in its own way:
// 1. The kernel reports changes of addresses (`describeAddressDrift`).
// 2. The kernel reports the size of a set without listing the set (`describeSetDrift`).
// 3. iptables-save prints the rules; they are read only if the version of the tables changed (`RuleDrift`).
// 4. IPVS reports no change and counts none, so virtual servers are compared in turn (`isServerUnchanged`), some in each check.
// `DriftChecks` runs the checks. Everything is read again at every sync period, because these checks do not see every change.

import { createHash } from 'node:crypto'
import { describeError } from '../../lib/errors.ts'
import type { Mutex } from '../../lib/mutex.ts'
import type { Timer } from '../../lib/time.ts'
import type { Destination, VirtualServer } from '../../sys/netlink/ipvs.ts'
import type { Wait } from '../../sys/netlink/socket.ts'
import type { DriftReason, OpenContext } from '../backend.ts'
import { destinationKey, deviceName, hasSameSettings } from './entries.ts'
import { countRulesInSaved, countRulesInText, hasAllJumps, type SavedRules } from './saved-rules.ts'

// ---- Addresses. ----

/** A change of an address by another process. */
export interface AddressChange {
  readonly ip: string
  readonly isRemoval: boolean
  readonly isOnDevice: boolean
}

export interface ExpectedAddresses {
  /** Addresses on the device. */
  readonly bound: ReadonlySet<string>
  /** Addresses of services that another interface has. */
  readonly elsewhere: ReadonlySet<string>
}

/** Returns '' if the change does not matter to us. */
export function describeAddressDrift(
  { ip, isRemoval, isOnDevice }: AddressChange,
  { bound, elsewhere }: ExpectedAddresses,
): string {
  if (isOnDevice && isRemoval) return bound.has(ip) ? `${ip} is gone from ${deviceName}` : ''
  if (isOnDevice) return bound.has(ip) ? '' : `${ip} appeared on ${deviceName}`
  if (isRemoval) return elsewhere.has(ip) ? `${ip} is free for ${deviceName}` : ''
  return bound.has(ip) ? `another interface has ${ip}` : ''
}

// ---- Sets. ----

export interface SetHeader {
  readonly name: string
  /** Undefined before Linux 4.9, which does not report it. */
  readonly elements?: number | undefined
}

/** Returns '' if every set has the expected number of members. */
export function describeSetDrift(expected: ReadonlyMap<string, number>, seen: readonly SetHeader[]): string {
  const byName = new Map(seen.map((set) => [set.name, set]))
  for (const [name, size] of expected) {
    const set = byName.get(name)
    if (set === undefined) return `ipset ${name} is gone`
    if (set.elements !== undefined && set.elements !== size) {
      return `ipset ${name} has ${set.elements} members instead of ${size}`
    }
  }
  return ''
}

// ---- Rules. ----

/** A program that never prints as many rules as it got must not make us write for ever: after this many mismatches in a row its output counts. */
const maxMismatches = 5

/**
 * Compares what iptables-save prints with what it printed after our last write. The programs print rules in a form of their own, so the
 * first output after a write is checked only by its jumps and by the number of rules in each chain; from then on every character counts.
 */
export class RuleDrift {
  /** The number of rules in each chain as written; undefined: unknown. */
  #written: string | undefined
  /** The hash of the first output after the write. */
  #printed: string | undefined
  #mismatches = 0

  /** Called before a write. */
  forget(): void {
    this.#written = undefined
  }

  /** Called after a write, with the input of iptables-restore. */
  expect(text: string): void {
    this.#written = countRulesInText(text)
    this.#printed = undefined
  }

  /** False until iptables-save was run after the last write. */
  get isCompared(): boolean {
    return this.#printed !== undefined
  }

  isUnchanged(saved: SavedRules): boolean {
    if (this.#written === undefined) return false
    const printed = createHash('sha256').update(JSON.stringify(saved)).digest('base64url')
    if (this.#printed !== undefined) return this.#printed === printed
    const isExpected = hasAllJumps(saved) && countRulesInSaved(saved) === this.#written
    this.#mismatches = isExpected ? 0 : this.#mismatches + 1
    const isAccepted = isExpected || this.#mismatches > maxMismatches
    this.#printed = isAccepted ? printed : 'unexpected'
    return isAccepted
  }
}

// ---- Virtual servers. ----

export interface ExpectedServer {
  readonly server: VirtualServer
  readonly destinations: ReadonlyMap<string, Destination>
}

/** `seen` are the destinations in the kernel without those that drain. */
export function isServerUnchanged(
  expected: ExpectedServer,
  server: VirtualServer,
  seen: readonly Destination[],
): boolean {
  const { destinations } = expected
  return (
    hasSameSettings(server, expected.server) &&
    seen.length === destinations.size &&
    seen.every((one) => destinations.get(destinationKey(one))?.weight === one.weight)
  )
}

// ---- When to check. ----

/** kube-proxy reads everything at every sync period, and so do we, except where that would take more than a hundredth of the time. */
const minFullReadMs = 10_000
const fullReadShare = 100
/** How long one check may take. */
const sliceMs = 10

/** Returns what someone else changed, or ''. Stops when `isOver` returns true, and continues there in the next call. */
export type DriftCheck = (wait: CheckWait, isOver: () => boolean) => Promise<string>

export interface CheckWait extends Wait {
  readonly signal: AbortSignal
}

export interface DriftChecksOptions {
  readonly context: OpenContext
  /** Held during every sync and every check. */
  readonly mutex: Mutex
  readonly syncPeriodMs: number
  readonly checkMs: number
  /** Run before the checks: removes drained destinations. */
  readonly sweep: (wait: CheckWait, isOver: () => boolean) => Promise<unknown>
  /** The checks in their order; the first one that finds a change ends the round. */
  readonly checks: readonly DriftCheck[]
}

export class DriftChecks {
  readonly #options: DriftChecksOptions
  readonly #abort = new AbortController()
  #timer: Timer | undefined
  #hasDrifted = false
  #lastReadAt = Number.NEGATIVE_INFINITY
  /** How long the last full read took. */
  #readMs = 0

  constructor(options: DriftChecksOptions) {
    this.#options = options
  }

  /** True also when everything must be read again because of its age. */
  get isDue(): boolean {
    const { context, syncPeriodMs } = this.#options
    const periodMs = Math.max(syncPeriodMs, minFullReadMs, fullReadShare * this.#readMs)
    return this.#hasDrifted || context.clock.monotonic() - this.#lastReadAt > periodMs
  }

  /** Called after everything was read. */
  noteFullRead(startedAt: number): void {
    this.#lastReadAt = this.#options.context.clock.monotonic()
    this.#readMs = this.#lastReadAt - startedAt
    this.#hasDrifted = false
  }

  /** Reports a change once, until everything was read again. */
  report(what: string, reason: DriftReason = 'changed'): void {
    if (this.#hasDrifted || this.#abort.signal.aborted) return
    this.#hasDrifted = true
    this.#options.context.onDrift(`another program (${what})`, reason)
  }

  /** Checks from now on. Does nothing if the checks run already. */
  start(): void {
    if (this.#timer !== undefined || this.#abort.signal.aborted) return
    const { clock, log } = this.#options.context
    this.#timer = clock.after(this.#options.checkMs, () => {
      this.#timer = undefined
      this.#check()
        .catch((error: unknown) => {
          if (this.#abort.signal.aborted) return
          log.warn('Cannot check ipvs for changes by other programs', { error: describeError(error) })
        })
        .finally(() => this.start())
    })
  }

  stop(): void {
    this.#abort.abort()
    this.#timer?.cancel()
  }

  async #check(): Promise<void> {
    const { mutex, sweep, checks } = this.#options
    // A sync that is running changes the kernel's state, which is not drift.
    if (mutex.open > 0 || this.#hasDrifted) return
    await mutex.run(async () => {
      const wait: CheckWait = { signal: this.#abort.signal, deadlineMs: 10_000 }
      await sweep(wait, this.#startSlice())
      for (const check of checks) {
        const found = await check(wait, this.#startSlice())
        if (found !== '') return this.report(found)
      }
    })
  }

  /** The slice is over when its time is used up, or when a sync waits for the mutex. */
  #startSlice(): () => boolean {
    const { mutex, context } = this.#options
    const end = context.clock.monotonic() + sliceMs
    return () => mutex.open > 1 || context.clock.monotonic() > end
  }
}
