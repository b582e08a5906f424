// Unix sockets in /run/sluice, which only their owner may open.

import { chmodSync, existsSync, lstatSync, readdirSync, unlinkSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { ProxyError } from '../../lib/errors.ts'
import { ensureSharedDirectory } from '../private-files.ts'
import { bindPath, type LocalSockets, mayBeInUse } from './local-sockets.ts'

const folder = '/run/sluice'

export const unixSockets: LocalSockets = {
  folder,
  pathOf: (name) => join(folder, `${name}.sock`),
  list: listSockets,
  exists: (path) => existsSync(path),
  async listen(server, path) {
    ensureSharedDirectory(dirname(path))
    await removeDeadSocket(path)
    // The umask keeps other users out between bind and chmod.
    const mask = process.umask(0o177)
    const bound = bindPath(server, path)
    process.umask(mask)
    await bound
    chmodSync(path, 0o600)
  },
  // Closing a Unix socket has removed its file.
  forget: () => {},
}

function listSockets(from: string): readonly string[] {
  try {
    return readdirSync(from)
      .filter((name) => name.endsWith('.sock'))
      .map((name) => join(from, name))
  } catch {
    return []
  }
}

/** Throws a ProxyError 'admin' if the path is in use, by a proxy or by anything else than a socket. */
async function removeDeadSocket(path: string): Promise<void> {
  const stats = lstatSync(path, { throwIfNoEntry: false })
  if (stats === undefined) return
  if (!stats.isSocket())
    throw new ProxyError('admin', `${path} exists and is not a socket: remove it, or choose another path`)
  if (await mayBeInUse(path)) throw new ProxyError('admin', `another proxy listens on ${path}`)
  unlinkSync(path)
}
