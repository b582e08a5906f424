// An API server without a network: reflectors read its objects as lines of a watch, and a test can cut the watch or send any line.

import type { Client } from '../../src/kube/client.ts'
import { ProxyError } from '../../src/lib/errors.ts'

type Lines = string[] | ProxyError

/** One watch: lines wait until the reflector asks for them. */
class Watch {
  #waiting: Lines[] = []
  #wake = () => {}

  send(lines: Lines): void {
    this.#waiting.push(lines)
    this.#wake()
  }

  async *read(signal: AbortSignal): AsyncGenerator<readonly string[], undefined> {
    signal.addEventListener('abort', () => this.send(new ProxyError('connection', 'the reader is gone')))
    for (;;) {
      while (this.#waiting.length === 0) await new Promise<void>((resolve) => (this.#wake = resolve))
      const next = this.#waiting.shift() as Lines
      if (next instanceof ProxyError) throw next
      yield next
    }
  }
}

export class ObjectFeed {
  /** Objects by resource and id. */
  readonly objects = new Map<string, Map<string, unknown>>()
  readonly #watches = new Map<Watch, string>()
  #version = 100

  /** What a reflector of this resource uses instead of a client. */
  client(resource: string): Pick<Client, 'request' | 'stream'> {
    return {
      request: () => Promise.reject(new ProxyError('connection', 'this server streams its lists')),
      stream: async ({ query, signal }) => {
        const watch = new Watch()
        this.#watches.set(watch, resource)
        signal?.addEventListener('abort', () => this.#watches.delete(watch))
        if (query?.sendInitialEvents === 'true') watch.send(this.#snapshot(resource))
        else if (Number(query?.resourceVersion) < this.#version) watch.send(new ProxyError('expired', 'too old'))
        return watch.read(signal ?? new AbortController().signal)
      },
    }
  }

  put(resource: string, id: string, object: unknown): void {
    const objects = this.#of(resource)
    const type = objects.has(id) ? 'MODIFIED' : 'ADDED'
    const versioned = withVersion(object, ++this.#version)
    objects.set(id, versioned)
    this.send(resource, JSON.stringify({ type, object: versioned }))
  }

  drop(resource: string, id: string): void {
    const object = this.#of(resource).get(id)
    if (object === undefined) return
    this.#of(resource).delete(id)
    this.send(resource, JSON.stringify({ type: 'DELETED', object: withVersion(object, ++this.#version) }))
  }

  send(resource: string, line: string): void {
    for (const [watch, of] of this.#watches) if (of === resource) watch.send([line])
  }

  /** Cuts all watches. */
  cut(): void {
    for (const watch of this.#watches.keys()) watch.send(new ProxyError('connection', 'the connection was cut'))
    this.#watches.clear()
  }

  #of(resource: string): Map<string, unknown> {
    const known = this.objects.get(resource) ?? new Map<string, unknown>()
    this.objects.set(resource, known)
    return known
  }

  #snapshot(resource: string): string[] {
    const metadata = { resourceVersion: String(this.#version), annotations: { 'k8s.io/initial-events-end': 'true' } }
    const lines = [...this.#of(resource).values()].map((object) => JSON.stringify({ type: 'ADDED', object }))
    return [...lines, JSON.stringify({ type: 'BOOKMARK', object: { metadata } })]
  }
}

/** A server sets the version of what it stores. An object without metadata stays as it is. */
function withVersion(object: unknown, version: number): unknown {
  const { metadata } = (object ?? {}) as { metadata?: unknown }
  if (typeof metadata !== 'object' || metadata === null || Array.isArray(metadata)) return object
  return { ...(object as object), metadata: { ...metadata, resourceVersion: String(version) } }
}
