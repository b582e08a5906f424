// Decides after a failed list or watch whether the next watch can start at the known version, and how long to wait before it. Pure.

import { ApiError, type ErrorCode, type ProxyError } from '../../lib/errors.ts'

export const maxBackoffMs = 30_000
const firstBackoffMs = 800
/** After this many failures, a version that the server keeps refusing (an etcd restored from a backup) is given up for a new snapshot. */
const maxResumes = 5

/** Errors that do not mean that the version is wrong. Any other error leads to a new snapshot. */
const resumableCodes: ReadonlySet<ErrorCode> = new Set([
  'connection',
  'tls',
  'credentials',
  'unauthorized',
  // An API server that has just started refuses everybody until it has read the roles. Every node would take a snapshot then.
  'forbidden',
  'too-many-requests',
  'unavailable',
  'timeout',
  'server-error',
  'stalled',
  'resource-version-too-large',
])

/** Errors that occur before the server has read the version, so that they never count against it. */
const codesBeforeVersion: ReadonlySet<ErrorCode> = new Set([
  'connection',
  'tls',
  'credentials',
  'unauthorized',
  'too-many-requests',
])

/** Returns whether the next watch may start at the known version; otherwise a new snapshot is needed. */
export const canResume = (code: ErrorCode, failures: number): boolean =>
  resumableCodes.has(code) && (failures < maxResumes || codesBeforeVersion.has(code))

export interface RetrySituation {
  /** Failures in a row before this one. */
  readonly failures: number
  /** True if the last snapshot has just been requested. */
  readonly isSnapshotRecent: boolean
  /** Between 0 and 1. */
  readonly random: () => number
}

/** Returns the milliseconds to wait: exponential, with jitter, and at least what the server asks for. */
export function computeRetryDelay(error: ProxyError, { failures, isSnapshotRecent, random }: RetrySituation): number {
  // A server that forgets old versions works as intended. But after its restart it has forgotten them for all nodes at once.
  if (error.code === 'expired' && !isSnapshotRecent) return random() * firstBackoffMs
  const requestedMs = error instanceof ApiError ? (error.retryAfterMs ?? 0) : 0
  const ceilingMs = Math.min(maxBackoffMs, firstBackoffMs * 2 ** (failures + 1))
  // An API server that ends breaks the watches of all its nodes at the same moment: the first attempts use the whole range.
  const leastMs = failures === 0 ? 0 : ceilingMs / 2
  return Math.max(Math.min(requestedMs, 2 * maxBackoffMs), leastMs) + random() * (ceilingMs - leastMs)
}
