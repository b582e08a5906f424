// Reads the saved state of this node from disk. What is too old, too large, damaged or foreign is refused with one sentence.

import type { FileHandle } from 'node:fs/promises'
import { hasErrno } from '../../lib/errors.ts'
import { type Clock, formatAge } from '../../lib/time.ts'
import { runSliced, TimeSlice } from '../../lib/yielding.ts'
import { openPrivateForRead } from '../../sys/private-files.ts'
import { decodeState, describeFailure, describeRefusal, type SavedObjects, type StateOwner } from './state-format.ts'

export interface StateFile {
  readonly path: string
  readonly owner: StateOwner
  readonly maxAgeMs: number
  readonly maxBytes: number
}

export interface SavedState {
  readonly objects: SavedObjects
  /** Unix ms: the state was that of the API server until then, as far as the proxy knew. */
  readonly savedAt: number
}

/** Resolves with a sentence if the file is not used, and with undefined if there is none. Never rejects. */
export async function readState(file: StateFile, clock: Clock): Promise<SavedState | string | undefined> {
  try {
    const handle = await openPrivateForRead(file.path)
    try {
      return await readOpened(handle, file, clock)
    } finally {
      await handle.close()
    }
  } catch (error) {
    return hasErrno(error, 'ENOENT') || hasErrno(error, 'ENOTDIR') ? undefined : describeFailure(file.path, error)
  }
}

async function readOpened(
  handle: FileHandle,
  { path, owner, maxAgeMs, maxBytes }: StateFile,
  clock: Clock,
): Promise<SavedState | string> {
  const { size, mtimeMs } = await handle.stat()
  if (size > maxBytes) return describeRefusal(path, `it has ${size} bytes, and ${maxBytes} are allowed`)
  // A clock that is not set yet, as on many boards at boot, makes the age negative. Then the age is unknown, and the state is used.
  const ageMs = clock.now() - mtimeMs
  if (ageMs > maxAgeMs)
    return describeRefusal(path, `it is ${formatAge(ageMs)} old, and ${formatAge(maxAgeMs)} are allowed`)
  const bytes = Buffer.allocUnsafe(size)
  let length = 0
  for (let read = -1; read !== 0 && length < size; length += read) {
    read = (await handle.read(bytes, length, size - length, length)).bytesRead
  }
  const decoded = await runSliced(decodeState(bytes.subarray(0, length), owner), new TimeSlice(clock))
  if ('refused' in decoded) return describeRefusal(path, decoded.refused)
  return { objects: decoded.objects, savedAt: mtimeMs }
}
