// Passes on how the connections of relays to endpoints begin, while there is a listener.

/** `unanswered`: there was no answer in time, and the relay tries another endpoint. */
export type DialResult = 'answered' | 'refused' | 'unanswered'

/** Returns true if the endpoint is watched: then the listener decides how long it gets no connections. */
export type DialListener = (endpoint: string, result: DialResult) => boolean

export class DialReports {
  #listener: DialListener | undefined

  /** Replaces the listener. */
  listen(listener: DialListener | undefined): void {
    this.#listener = listener
  }

  report(endpoint: string, result: DialResult): boolean {
    return this.#listener?.(endpoint, result) ?? false
  }
}
