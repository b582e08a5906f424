// A reflector on a fake API, with a sink that records every call.

import type { DecodedRecord } from '../../src/kube/decode/fields.ts'
import { service } from '../../src/kube/protobuf/message-tables.ts'
import type { RecordSink } from '../../src/kube/reflect/change-filter.ts'
import { Reflector, type ReflectorOptions } from '../../src/kube/reflect/reflector.ts'
import { silentLogger } from '../../src/lib/log.ts'
import type { Problem } from '../../src/model/types.ts'
import { type FastClock, fastClock } from '../support/fast-clock.ts'
import type { FakeObject } from './fake-api.ts'
import { clientTo, connectionTo } from './script-server.ts'

function decodeFake(input: unknown): DecodedRecord<number> {
  const { metadata, value } = input as FakeObject
  const key = `${metadata.namespace}/${metadata.name}`
  const problem = (message: string): Problem => ({ kind: 'Thing', object: key, uid: '', field: 'value', message })
  if (typeof value !== 'number') return { key, record: undefined, problems: [problem('bad')] }
  return { key, record: value < 0 ? undefined : value, problems: [] }
}

export class ReflectorHarness {
  readonly state = new Map<string, number>()
  readonly calls: string[] = []
  readonly problems: Problem[] = []
  readonly reflector: Reflector<number>
  readonly clock: FastClock
  synced = 0
  readonly #controller = new AbortController()
  readonly running: Promise<void>
  readonly #client: ReturnType<typeof clientTo>

  constructor(url: string, factor = 100, more: Partial<ReflectorOptions<number>> = {}) {
    this.clock = fastClock(factor)
    this.#client = clientTo(connectionTo(url), this.clock)
    const sink: RecordSink<number> = {
      put: (key, record) => {
        if (this.state.get(key) === record) this.calls.push(`DUPLICATE put ${key}=${record}`)
        this.state.set(key, record)
        this.calls.push(`put ${key}=${record}`)
      },
      drop: (key) => {
        if (!this.state.delete(key)) this.calls.push(`DUPLICATE drop ${key}`)
        this.calls.push(`drop ${key}`)
      },
      synced: () => {
        this.synced++
        this.calls.push('synced')
      },
      problem: (problem) => this.problems.push(problem),
    }
    const resource = { resource: '/api/v1/things', kind: 'Thing', protobuf: service, decode: decodeFake }
    this.reflector = new Reflector({
      ...resource,
      client: this.#client,
      sink,
      clock: this.clock,
      log: silentLogger,
      ...more,
    })
    this.running = this.reflector.run(this.#controller.signal)
    this.running.catch(() => {})
  }

  equals(objects: ReadonlyMap<string, FakeObject>): boolean {
    if (objects.size !== this.state.size) return false
    return [...objects].every(([key, object]) => this.state.get(key) === object.value)
  }

  get duplicates(): string[] {
    return this.calls.filter((line) => line.startsWith('DUPLICATE'))
  }

  async stop(): Promise<void> {
    this.#controller.abort(new Error('test is over'))
    await this.running
    this.#client.close()
  }
}
