// Finds a port for a listener: any that the kernel has free, or one of the configured range, which is tried in turn from a random start.

import { hasErrno, ProxyError } from '../../lib/errors.ts'

export type ProxyPortRange = readonly [first: number, last: number]

/** What has a port and can be closed. */
interface PortHolder {
  readonly port: number
  close(): Promise<void>
}

export interface PortChoice {
  readonly random: () => number
  /** True for a port that must stay free. */
  readonly avoid: (port: number) => boolean
}

/** Calls `open` until it does not fail because the port is in use. */
export async function openAnyPort<T extends PortHolder>(
  open: (port: number) => Promise<T>,
  range: ProxyPortRange | undefined,
  { random, avoid }: PortChoice,
): Promise<T> {
  if (range === undefined) return await openFreePort(open, avoid)
  const [first, last] = range
  const count = last - first + 1
  const start = Math.floor(random() * count)
  for (let i = 0; i < count; i++) {
    const port = first + ((start + i) % count)
    if (avoid(port)) continue
    try {
      return await open(port)
    } catch (error) {
      if (!isPortInUse(error)) throw error
    }
  }
  throw new ProxyError(
    'no-proxy-port',
    `all ${count} ports of portRange (--proxy-port-range) ${first}-${last} are in use`,
  )
}

const maxTries = 16

async function openFreePort<T extends PortHolder>(
  open: (port: number) => Promise<T>,
  avoid: (port: number) => boolean,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    const opened = await open(0)
    if (!avoid(opened.port) || tries === maxTries) return opened
    await opened.close()
  }
}

function isPortInUse(error: unknown): boolean {
  const cause = error instanceof ProxyError ? error.cause : error
  return hasErrno(cause, 'EADDRINUSE', 'EACCES')
}
