// Knows which object a reflector is delivering, so that the history can ask who changed it. Delivery is synchronous: whatever the engine
// records meanwhile comes from this object.

import type { DeliveredObject } from '../../engine/history/history-recorder.ts'
import type { RecordSink } from '../../kube/reflect/change-filter.ts'
import { readOrigin } from '../../kube/reflect/object-origin.ts'

export class DeliveredObjects {
  #current: DeliveredObject | undefined

  get current(): DeliveredObject | undefined {
    return this.#current
  }

  /** Returns a sink that notes each object while the given sink gets it. */
  follow<R>(kind: string, sink: RecordSink<R>): RecordSink<R> {
    return {
      put: (key, record, json) =>
        this.#during(
          kind,
          key,
          () => readOrigin(json, false),
          () => sink.put(key, record),
        ),
      drop: (key, json) =>
        this.#during(
          kind,
          key,
          () => readOrigin(json, true),
          () => sink.drop(key),
        ),
      synced: () => sink.synced(),
      problem: (problem) => sink.problem(problem),
    }
  }

  #during(kind: string, key: string, read: DeliveredObject['readOrigin'], deliver: () => void): void {
    this.#current = { kind, key, readOrigin: read }
    try {
      deliver()
    } finally {
      this.#current = undefined
    }
  }
}
