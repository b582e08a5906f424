// Notes which services got frontends that the data plane translates, so that connections from before can be removed. No I/O.

import { SetHash } from '../../lib/set-hash.ts'
import { type Steps, stride } from '../../lib/yielding.ts'
import type { ServicePort } from '../../model/types.ts'
import { isLive } from './early-flows.ts'

export class LiveFrontends {
  /** A hash of the live frontends of each service: the frontends of all services would take many megabytes. */
  readonly #hashes = new Map<string, SetHash>()
  readonly #changed = new Set<string>();

  /** Called when a service has been planned. In steps, because a service may have 20,000 frontends. */
  *note(service: string, ports: readonly ServicePort[]): Steps<void> {
    const before = this.#hashes.get(service)
    const hash = yield* hashFrontends(ports)
    if (hash === before || (hash !== undefined && before?.equals(hash))) return
    if (hash === undefined) {
      this.#hashes.delete(service)
      this.#changed.delete(service)
    } else {
      this.#hashes.set(service, hash)
      this.#changed.add(service)
    }
  }

  /** The services that got other live frontends and have not been taken. */
  list(): readonly string[] {
    return this.#changed.size === 0 ? none : [...this.#changed]
  }

  /** Returns the services that got other live frontends, each once. If only a part of all is written, `written` names the part. */
  take(written?: readonly string[]): readonly string[] {
    const taken = written === undefined ? this.list() : written.filter((service) => this.#changed.has(service))
    for (const service of taken) this.#changed.delete(service)
    return taken
  }
}

const none: readonly never[] = []

/** Undefined without live frontends. The order does not matter. */
function* hashFrontends(ports: readonly ServicePort[]): Steps<SetHash | undefined> {
  let hash: SetHash | undefined
  let seen = 0
  for (const port of ports) {
    if (!isLive(port)) continue
    for (const { kind, ip, port: number } of port.frontends) {
      hash ??= new SetHash()
      if (++seen % stride === 0) yield
      for (const part of [port.protocol, kind, ip, String(number)]) hash.extend(part)
      hash.finish()
    }
  }
  return hash
}
