// Which port a listener tries: any that the kernel has free, or one after the other of a configured range, from a random start.

import { ProxyError } from '../../lib/errors.ts'

export type ProxyPortRange = readonly [first: number, last: number]

/** Calls `open` until it does not say that the port is taken; `avoid` are ports that somebody else has a use for. */
export async function openAnyPort<T extends { readonly port: number; close(): Promise<void> }>(
  open: (port: number) => Promise<T>,
  range: ProxyPortRange | undefined,
  options: { readonly random: () => number; readonly avoid: (port: number) => boolean },
): Promise<T> {
  if (range === undefined) return await openFree(open, options.avoid)
  const [first, last] = range
  const count = last - first + 1
  const start = Math.floor(options.random() * count)
  for (let i = 0; i < count; i++) {
    const port = first + ((start + i) % count)
    if (options.avoid(port)) continue
    try {
      return await open(port)
    } catch (error) {
      if (!isTaken(error)) throw error
    }
  }
  throw new ProxyError('no-proxy-port', `all ${count} ports of --proxy-port-range ${first}-${last} are in use`)
}

const mostTries = 16

async function openFree<T extends { readonly port: number; close(): Promise<void> }>(
  open: (port: number) => Promise<T>,
  avoid: (port: number) => boolean,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    const opened = await open(0)
    if (!avoid(opened.port) || tries === mostTries) return opened
    await opened.close()
  }
}

function isTaken(error: unknown): boolean {
  const cause = error instanceof ProxyError ? error.cause : error
  return cause instanceof Error && 'code' in cause && (cause.code === 'EADDRINUSE' || cause.code === 'EACCES')
}
