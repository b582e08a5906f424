// Starts an in-memory API server that has applied the manifests of a directory: it allocates addresses and keeps EndpointSlices.

import { statSync } from 'node:fs'
import { join } from 'node:path'
import { type ApiServer, startApiServer } from '../../apiserver/start.ts'
import { describeInvalidManifest } from '../../daemon/manifest-problems.ts'
import type { Client } from '../../kube/client.ts'
import { ProxyError } from '../../lib/errors.ts'
import { silentLogger } from '../../lib/log.ts'

/** The server while `use` runs; it closes afterwards. */
export interface ManifestServer {
  readonly api: Pick<Client, 'request'>
  /** Resolves when the EndpointSlices reflect all objects. */
  readonly waitForSlices: () => Promise<void>
}

/** Throws a ProxyError 'manifests' that names the file, line and field of each problem. */
export async function withManifests<T>(directory: string, use: (server: ManifestServer) => Promise<T>): Promise<T> {
  if (statSync(directory, { throwIfNoEntry: false })?.isDirectory() !== true) {
    throw new ProxyError('manifests', `--manifests: ${directory} is not a directory`)
  }
  // Allocation is random by default; a constant makes the same files give the same addresses each time.
  const server = await startApiServer({ tls: false, manifests: directory, log: silentLogger, random: () => 0 })
  try {
    const problems = server.manifests?.problems() ?? []
    if (problems.length > 0) {
      const lines = problems.map((problem) =>
        describeInvalidManifest({ ...problem, file: join(directory, problem.file) }),
      )
      throw new ProxyError('manifests', lines.join('; '))
    }
    const waitForSlices = () => waitUntilUnchanged(server.registry)
    await waitForSlices()
    return await use({ api: server.client, waitForSlices })
  } finally {
    await server.close()
  }
}

/** The controller that keeps EndpointSlices has caught up when two checks in a row see no change of the registry. */
async function waitUntilUnchanged(registry: ApiServer['registry']): Promise<void> {
  for (let unchanged = 0, head = -1; unchanged < 2; ) {
    await registry.settled()
    await new Promise((resolve) => setTimeout(resolve, 5))
    unchanged = registry.head === head ? unchanged + 1 : 0
    head = registry.head
  }
}
