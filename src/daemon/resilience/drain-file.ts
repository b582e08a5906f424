// Remembers on disk which service ports drain, and since when, so that a restart of the proxy does not end their time. The file is small, lies
// beside the saved state, and is written only when a port begins or ends to drain.

import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { readPrivateFile, writePrivateFile } from '../../sys/private-files.ts'

const version = 1
/** More are not remembered: the file is written as a whole. */
const maxPorts = 10_000

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null

export class DrainFile {
  readonly #path: string
  readonly #log: Logger
  #next: ReadonlyMap<string, number> | undefined

  /** `state` is the path of the saved state. */
  constructor(state: string, log: Logger) {
    this.#path = state.replace(/\.state$/, '.drains')
    this.#log = log
  }

  /** The Unix time at which each port began to drain. Empty if there is no file, or not a valid one. */
  read(): Map<string, number> {
    const found = new Map<string, number>()
    try {
      const text = readPrivateFile(this.#path)
      const value: unknown = text === undefined ? {} : JSON.parse(text)
      if (!isObject(value) || value.version !== version || !isObject(value.ports)) return found
      for (const [key, since] of Object.entries(value.ports)) if (typeof since === 'number') found.set(key, since)
    } catch (error) {
      this.#log.v(2, 'The file of draining service ports is not used', {
        path: this.#path,
        error: describeError(error),
      })
    }
    return found
  }

  /** Writes the ports at the end of this turn of the event loop: several may begin to drain in one sync. */
  write(ports: ReadonlyMap<string, number>): void {
    if (this.#next === undefined) setImmediate(() => this.#write())
    this.#next = ports
  }

  #write(): void {
    const ports = Object.fromEntries([...(this.#next ?? [])].slice(0, maxPorts))
    this.#next = undefined
    try {
      writePrivateFile(this.#path, JSON.stringify({ version, ports }))
    } catch (error) {
      this.#log.v(2, 'Draining service ports cannot be remembered', { path: this.#path, error: describeError(error) })
    }
  }
}
