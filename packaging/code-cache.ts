// Removes from the blob of a single executable what V8 has compiled of Node's modules that Sluice never loads. Node copies all of it, 4 MB,
// at every start, and a module without it is only slower to load.
//
// The blob is written by the very Node that reads it, so its layout is that of one version (see `nodeBinary`). Numbers are little-endian, and
// texts and vectors follow their length of 8 bytes:
//   blob: magic, flags, two bytes, path of the script, snapshot, assets
//   snapshot: magic, type, version, architecture and platform of Node, flags, heap of V8 (after its length of 4 bytes), facts, code cache
//   code cache: a vector of pairs of a module's name and its code
// The facts have no length of their own. The code cache begins where a vector of such pairs ends exactly where the snapshot does.

const snapshotMagic = 0x143da19
/** Where the path of the script is. */
const pathAt = 10

/** The code of one module of Node: its name, and where name and code lie in the blob. */
interface CachedCode {
  readonly module: string
  readonly start: number
  readonly end: number
}

interface CodeCache {
  readonly start: number
  readonly entries: readonly CachedCode[]
}

/** Returns the blob with the compiled code of those modules only. Throws if the layout is not the expected one. */
export function keepCompiledModules(blob: Buffer, modules: ReadonlySet<string>): Buffer {
  const lengthAt = skipText(blob, pathAt)
  const [start, end] = [lengthAt + 8, skipText(blob, lengthAt)]
  const cache = findCodeCache(blob, start, end)
  const kept = cache.entries.filter(({ module }) => modules.has(module))
  const parts = [
    blob.subarray(start, cache.start),
    lengthBytes(kept.length),
    ...kept.map((entry) => blob.subarray(entry.start, entry.end)),
  ]
  const snapshot = Buffer.concat(parts)
  return Buffer.concat([blob.subarray(0, lengthAt), lengthBytes(snapshot.length), snapshot, blob.subarray(end)])
}

/** The heap of V8 in the blob. */
export const findHeap = (blob: Buffer): Buffer => findHeapAt(blob, skipText(blob, pathAt) + 8)

function findHeapAt(blob: Buffer, start: number): Buffer {
  if (blob.readUInt32LE(start) !== snapshotMagic) throw new Error('the blob has no snapshot where it is expected')
  let at = start + 5
  for (let text = 0; text < 3; text++) at = skipText(blob, at)
  return blob.subarray(at + 8, at + 8 + blob.readInt32LE(at + 4))
}

function findCodeCache(blob: Buffer, start: number, end: number): CodeCache {
  const heap = findHeapAt(blob, start)
  for (let at = heap.byteOffset - blob.byteOffset + heap.length; at < end - 8; at++) {
    const entries = readEntries(blob, at, end)
    if (entries !== undefined) return { start: at, entries }
  }
  throw new Error('the snapshot does not end with compiled modules')
}

/** A vector that is shorter than this could be a coincidence. */
const minModules = 100

/** Undefined unless a vector of pairs begins at `start` and ends at `end`. */
function readEntries(blob: Buffer, start: number, end: number): readonly CachedCode[] | undefined {
  const count = readLength(blob, start)
  if (count < minModules) return undefined
  const entries: CachedCode[] = []
  let at = start + 8
  while (at < end - 8 && entries.length < count) {
    const codeAt = skipText(blob, at)
    const next = codeAt < end - 8 ? skipText(blob, codeAt) : end + 1
    if (next > end) return undefined
    entries.push({ module: blob.toString('latin1', at + 8, codeAt), start: at, end: next })
    at = next
  }
  return at === end && entries.length === count ? entries : undefined
}

const readLength = (blob: Buffer, at: number): number => Number(blob.readBigUInt64LE(at))
const skipText = (blob: Buffer, at: number): number => at + 8 + readLength(blob, at)

function lengthBytes(length: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt(length))
  return bytes
}
