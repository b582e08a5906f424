// The format of the files of the write-ahead log: each line is a CRC-32 checksum in hex, a blank, and a JSON document.

import { crc32 } from 'node:zlib'

/** One change: an object as JSON text, or its removal. */
export interface Mutation {
  readonly version: number
  readonly resource: string
  /** `namespace/name` or `name`. */
  readonly key: string
  /** undefined: the object was removed. */
  readonly json: string | undefined
}

export const formatLine = (json: string): string => `${crc32(json).toString(16).padStart(8, '0')} ${json}\n`

/** The document of a line without its newline; undefined if the line is torn or damaged. */
export function parseLine(bytes: Buffer): unknown {
  const checksum = bytes.subarray(0, 8).toString('latin1')
  if (!/^[0-9a-f]{8}$/.test(checksum) || bytes[8] !== 0x20) return undefined
  const json = bytes.subarray(9)
  return crc32(json) === Number.parseInt(checksum, 16) ? JSON.parse(json.toString('utf8')) : undefined
}

/** A batch of changes as one line. */
export const formatBatch = (batch: readonly Mutation[]): string =>
  formatLine(`[${batch.map(formatMutation).join(',')}]`)

const formatMutation = ({ version, resource, key, json }: Mutation): string =>
  `[${version},${JSON.stringify(resource)},${JSON.stringify(key)},${json ?? 'null'}]`

export function parseBatch(document: unknown): readonly Mutation[] {
  // The checksum guarantees that `formatBatch` wrote the line.
  const batch = document as readonly [version: number, resource: string, key: string, object: unknown][]
  return batch.map(([version, resource, key, object]) => ({
    version,
    resource,
    key,
    json: object === null ? undefined : JSON.stringify(object),
  }))
}

/** The last line of a snapshot, which proves that it is complete. */
export interface SnapshotFooter {
  /** The number of objects. */
  readonly complete: number
  /** The newest version in the snapshot. */
  readonly version: number
}

export const formatFooter = (footer: SnapshotFooter): string => formatLine(JSON.stringify(footer))

export function parseFooter(document: unknown): SnapshotFooter | undefined {
  const footer = document as Partial<SnapshotFooter> | undefined
  if (typeof footer?.complete !== 'number' || typeof footer.version !== 'number') return undefined
  return { complete: footer.complete, version: footer.version }
}
