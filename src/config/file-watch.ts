// Watches configuration files for changes: kube-proxy's as kube-proxy does, which watches the file that was opened, and ours by its name.

import { closeSync, fstatSync, openSync, readSync, watch } from 'node:fs'
import { dirname } from 'node:path'

export interface FileWatch {
  close(): void
}

/**
 * Calls `onChange` once, with the end of a sentence about the file, when the file is written to or moved, or when watching fails. A chmod, a
 * removal, and a new file that is renamed over this one do not count as changes: as with kube-proxy, an updated ConfigMap volume does not
 * restart the proxy. Unlike in kube-proxy, rewriting the same bytes does not count as a change either.
 *
 * Node reports inotify's modify and attrib both as 'change', and move and delete both as 'rename'. The open descriptor distinguishes them,
 * by its content and by whether the file still has a name.
 */
export function watchConfigFile(path: string, onChange: (reason: string) => void): FileWatch {
  const fd = openSync(path, 'r')
  const before = readAll(fd)
  const watcher = watch(path, { persistent: false })
  let open = true
  const close = () => {
    if (!open) return
    open = false
    watcher.close()
    closeSync(fd)
  }
  const fire = (reason: string) => {
    close()
    onChange(reason)
  }
  watcher.on('change', (event) => {
    if (!open) return
    if (!readAll(fd).equals(before)) fire('was written to')
    else if (event === 'rename' && fstatSync(fd).nlink > 0) fire('was moved')
  })
  watcher.on('error', (error) => {
    if (open) fire(`cannot be watched: ${error.message}`)
  })
  return { close }
}

/** Reads from the start, whatever the position of the descriptor. */
function readAll(fd: number): Buffer {
  const chunks: Buffer[] = []
  for (let at = 0; ; ) {
    const chunk = Buffer.alloc(64 * 1024)
    const size = readSync(fd, chunk, 0, chunk.length, at)
    if (size === 0) return Buffer.concat(chunks)
    chunks.push(chunk.subarray(0, size))
    at += size
  }
}

/**
 * Calls `onChange` when something in the folder of the file changes: a new file that is renamed over the old one, and the link that an
 * updated ConfigMap volume moves, count. Whether the content has changed is for the caller to see. `onError` is called if watching ends.
 */
export function watchFileName(path: string, onChange: () => void, onError: (error: Error) => void): FileWatch {
  const watcher = watch(dirname(path), { persistent: false })
  watcher.on('change', () => onChange())
  watcher.on('error', onError)
  return { close: () => watcher.close() }
}
