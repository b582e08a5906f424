// Manifests as a cluster would see them: an API server in memory takes them in, allocates addresses and keeps slices.

import { statSync } from 'node:fs'
import { join } from 'node:path'
import { type ApiServer, startApiServer } from '../../apiserver/start.ts'
import type { Client } from '../../kube/client.ts'
import { ProxyError } from '../../lib/errors.ts'
import { silentLogger } from '../../lib/log.ts'

/** Throws a ProxyError 'manifests' with file, line and field of what is wrong. `settled` waits until slices follow what was changed. */
export async function withManifests<T>(
  directory: string,
  use: (api: Pick<Client, 'request'>, settled: () => Promise<void>) => Promise<T>,
): Promise<T> {
  if (statSync(directory, { throwIfNoEntry: false })?.isDirectory() !== true) {
    throw new ProxyError('manifests', `--manifests: ${directory} is no directory`)
  }
  // The same text must give the same addresses each time: there is no chance in it.
  const server = await startApiServer({ tls: false, manifests: directory, log: silentLogger, random: () => 0 })
  try {
    const problems = server.manifests?.problems() ?? []
    if (problems.length > 0) {
      const lines = problems.map(
        ({ file, line, field, message }) =>
          `${join(directory, file)}:${line}: ${field === '' ? '' : `${field}: `}${message}`,
      )
      throw new ProxyError('manifests', lines.join('; '))
    }
    const settled = () => quiet(server.registry)
    await settled()
    return await use(server.local, settled)
  } finally {
    await server.close()
  }
}

/** Slices are kept by a controller that follows the objects: it is done when nothing has changed for two turns. */
async function quiet(registry: ApiServer['registry']): Promise<void> {
  for (let still = 0, head = -1; still < 2; ) {
    await registry.settled()
    await new Promise((resolve) => setTimeout(resolve, 5))
    still = registry.head === head ? still + 1 : 0
    head = registry.head
  }
}
