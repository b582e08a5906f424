// Returns memory to the kernel that this process does not use now. The start is the reason: it runs code that never runs again, reads
// V8's snapshot from the executable, and compiles, which leaves the heap of malloc full of holes.

import { readFileSync } from 'node:fs'
import { getHeapStatistics, setFlagsFromString } from 'node:v8'
import { trimMalloc, unmapFilePages } from './libc.ts'

export interface PageRange {
  readonly start: bigint
  readonly end: bigint
}

/** A mapping: its range, its permissions, and the path of its file; then lines like `Rss:   1024 kB`. */
const mapping = /^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ +(\/.*)\n((?:[A-Z].*\n)+)/gm

/**
 * Finds the mappings of files that this process cannot write to and has not changed, in the text of /proc/self/smaps. The dynamic linker
 * changes pages and makes them read-only afterwards: these count as anonymous, and their mapping is left alone. Pure.
 */
export function findUnchangedFiles(smaps: string): readonly PageRange[] {
  const found: PageRange[] = []
  for (const [, start, end, permissions = '', , details = ''] of smaps.matchAll(mapping)) {
    const isPrivate = permissions[1] === '-' && permissions[3] === 'p'
    if (!isPrivate || !/^Rss: +[1-9]/m.test(details) || !/^Anonymous: +0 kB$/m.test(details)) continue
    found.push({ start: BigInt(`0x${start}`), end: BigInt(`0x${end}`) })
  }
  return found
}

/**
 * Which collection of garbage a release begins. `compacting` also moves what is left together, so that more memory is returned; but V8
 * forgets the shapes of objects of which there is none at the moment, and with them most of the compiled code that works on them.
 */
export type HeapCollection = 'none' | 'ordinary' | 'compacting'

/** V8 begins to collect when so much memory of buffers came since its last collection. */
const pressingBytes = 96 << 20

/**
 * Begins a collection in steps: a large buffer is the only reason for V8 to begin one that a program can give. Nobody writes to the buffer,
 * so that it takes no memory, and the collection removes it. V8 reads the flag when it begins (V8 14.6, seen with --trace-gc).
 */
function beginCollection(isCompacting: boolean): void {
  if (isCompacting) setFlagsFromString('--optimize-for-size')
  try {
    // The bundler removes `new ArrayBuffer`, which nobody uses.
    Reflect.construct(ArrayBuffer, [pressingBytes])
  } finally {
    if (isCompacting) setFlagsFromString('--no-optimize-for-size')
  }
}

/** Bytes of V8's heap that hold nothing, but are too scattered to be returned. */
export function readScatteredBytes(): number {
  const { total_heap_size: total, used_heap_size: used } = getHeapStatistics()
  return total - used
}

/**
 * Trims the heap of malloc, and unmaps all pages of unchanged files. These stay in the page cache: what the process still uses it maps again
 * at the next access, 16 pages at a time, which costs a microsecond.
 */
export function releaseMemory({ collection }: { readonly collection: HeapCollection }): void {
  trimMalloc()
  const files = findUnchangedFiles(readFileSync('/proc/self/smaps', 'latin1'))
  for (const { start, end } of files) unmapFilePages(start, end)
  // The buffer fails where the address space of the process is limited. What else can be done is done then.
  if (collection !== 'none') beginCollection(collection === 'compacting')
}
