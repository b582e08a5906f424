// Decides when which endpoint is probed: spread over the interval by chance, within a rate and a number of probes at once. No I/O, and no
// clock: the caller passes the time in milliseconds.
//
// Probes that cannot start in time wait, and their next probe counts from their start: a schedule that is too full has longer intervals, and
// never makes up for what it missed.

import { Budget } from '../outliers/budget.ts'
import { DueQueue } from './due-queue.ts'

export interface ScheduleSettings {
  readonly perSecond: number
  readonly atOnce: number
  /** In [0, 1). */
  readonly random: () => number
}

interface Scheduled {
  readonly intervalMs: number
  /** When it is due. Undefined while the probe runs. */
  dueAt: number | undefined
  startedAt: number
}

/** Intervals vary by this share, so that probes of many nodes do not fall into step. */
const jitter = 0.1
/** A probe that starts this much later than it was due counts as delayed. */
const delayedMs = 1_000

export class ProbeSchedule {
  readonly #settings: ScheduleSettings
  readonly #targets = new Map<string, Scheduled>()
  /** May hold ids that were dropped or scheduled again. */
  readonly #queue = new DueQueue()
  readonly #tokens: Budget
  readonly #running = new Set<string>()
  #delayed = 0

  constructor(settings: ScheduleSettings) {
    this.#settings = settings
    this.#tokens = new Budget({
      get perSecond() {
        return settings.perSecond
      },
      get burst() {
        return Math.max(1, settings.perSecond / 10)
      },
    })
  }

  get size(): number {
    return this.#targets.size
  }

  /** Probes that started much later than they were due. */
  get delayed(): number {
    return this.#delayed
  }

  /** Adds a target. Its first probe comes at any time within an interval. */
  add(id: string, intervalMs: number, now: number): void {
    if (this.#targets.has(id)) return
    const dueAt = now + this.#settings.random() * intervalMs
    this.#targets.set(id, { intervalMs, dueAt, startedAt: now })
    this.#queue.add(id, dueAt)
  }

  /** A probe of it that runs still counts until it ends. */
  drop(id: string): void {
    this.#targets.delete(id)
  }

  /** Returns the targets whose probes start now. */
  start(now: number): readonly string[] {
    const started: string[] = []
    for (let first = this.#queue.first; first !== undefined && first.at <= now; first = this.#queue.first) {
      if (this.#running.size >= this.#settings.atOnce || !this.#tokens.has(now)) break
      this.#queue.removeFirst()
      const target = this.#targets.get(first.id)
      if (target === undefined || target.dueAt !== first.at || this.#running.has(first.id)) continue
      if (now - first.at > delayedMs) this.#delayed++
      target.dueAt = undefined
      target.startedAt = now
      this.#tokens.take(1)
      this.#running.add(first.id)
      started.push(first.id)
    }
    return started
  }

  /** Called when the probe of a target has ended. */
  end(id: string, now: number): void {
    this.#running.delete(id)
    const target = this.#targets.get(id)
    if (target === undefined) return
    const interval = target.intervalMs * (1 + jitter * (2 * this.#settings.random() - 1))
    target.dueAt = Math.max(now, target.startedAt + interval)
    this.#queue.add(id, target.dueAt)
  }

  /** Milliseconds until `start` may return something; undefined if only the end of a probe can change that. */
  waitMs(now: number): number | undefined {
    const { first } = this.#queue
    if (first === undefined || this.#running.size >= this.#settings.atOnce) return undefined
    this.#tokens.has(now)
    return Math.max(0, first.at - now, this.#tokens.waitMs())
  }
}
