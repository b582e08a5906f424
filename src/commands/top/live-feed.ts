// Reads what the live view shows from a proxy, and no more often than the proxy can afford: a list of 10,000 services costs it 0.2 s.

import type { ChangeCount, Connections, ServiceSummary, Summary } from '../../http/admin.ts'
import type { AdminClient } from '../../http/admin-client.ts'
import type { Traffic } from '../../http/admin-traffic.ts'
import type { LiveDocument, ServiceHistory } from './live-document.ts'

/** The part of a proxy's client that the live view uses. */
export type LiveSource = Pick<AdminClient, 'summary' | 'services' | 'connections' | 'changes' | 'reports'> &
  Partial<Pick<AdminClient, 'traffic'>>

/** An answer is read again after this many times the duration that it took to read. */
const restFactor = 20

/** The last value of an answer, and when it may be read again. */
class PacedAnswer<T> {
  readonly #read: () => Promise<T>
  #value: { readonly answer: T; readonly version: string } | undefined
  #dueAt = 0

  constructor(read: () => Promise<T>) {
    this.#read = read
  }

  /** Reads the answer if the version differs from that of the last answer, or returns the last answer. */
  async get(version: string): Promise<T> {
    const last = this.#value
    const startedAt = performance.now()
    if (last !== undefined && (last.version === version || startedAt < this.#dueAt)) return last.answer
    const answer = await this.#read()
    const now = performance.now()
    this.#value = { answer, version }
    this.#dueAt = now + (now - startedAt) * restFactor
    return answer
  }
}

export class LiveFeed {
  readonly #source: LiveSource
  readonly #services: PacedAnswer<readonly ServiceSummary[]>
  readonly #connections: PacedAnswer<readonly Connections[]>
  readonly #changes: PacedAnswer<readonly ChangeCount[]>
  readonly #traffic: PacedAnswer<Traffic | undefined>
  #reads = 0

  constructor(source: LiveSource) {
    this.#source = source
    this.#services = new PacedAnswer(() => source.services('', false))
    this.#connections = new PacedAnswer(() => source.connections())
    this.#changes = new PacedAnswer(() => source.changes())
    // A proxy of an older version has no counters.
    this.#traffic = new PacedAnswer(async () => source.traffic?.('').catch(() => undefined))
  }

  /** Rejects with a ProxyError if the proxy cannot be asked. */
  async read(): Promise<LiveDocument> {
    const summary = await this.#source.summary()
    const version = versionOf(summary)
    const [services, connections, changes, traffic] = await Promise.all([
      this.#services.get(version),
      this.#connections.get(String(++this.#reads)),
      this.#changes.get(version),
      this.#traffic.get(String(this.#reads)),
    ])
    return { summary, services, connections, changes, traffic, now: Date.now() }
  }

  async readHistory(service: string): Promise<ServiceHistory> {
    return { service, reports: await this.#source.reports(service) }
  }
}

/** Changes whenever an object or the data plane changed, or another process answers. */
const versionOf = ({ pid, startedAt, counters }: Summary): string => JSON.stringify([pid, startedAt, counters])
