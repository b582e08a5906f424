// Dials endpoints whose ejection is over, before clients do: a trial that fails costs no client anything.

import { answerMs } from '../../engine/outliers/connection-watch.ts'
import { probeEndpoint } from './probe-client.ts'

/** Dials at the same time. With more endpoints than that, trials are late. */
const maxAtOnce = 32

export interface TrialDialsOptions {
  /** Returns endpoints to dial, at most so many. */
  readonly take: (most: number) => readonly string[]
  readonly tried: (endpoint: string, answers: boolean) => void
}

export class TrialDials {
  readonly #options: TrialDialsOptions
  #running = 0

  constructor(options: TrialDialsOptions) {
    this.#options = options
  }

  /** Dials what is due, as far as there is room. */
  run(): void {
    const { take, tried } = this.#options
    for (const endpoint of take(maxAtOnce - this.#running)) {
      this.#running++
      void probeEndpoint(endpoint, { kind: 'tcp', target: '', timeoutMs: answerMs }).then((result) => {
        this.#running--
        // If this machine cannot dial, the trial is left to the clients.
        tried(endpoint, result === 'unknown' || result.failure === undefined)
      })
    }
  }
}
