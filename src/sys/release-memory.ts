// Returns memory to the kernel that this process does not use now. The start is the reason: it runs code that never runs again, reads
// V8's snapshot from the executable, and compiles, which leaves the heap of malloc full of holes.

import { readFileSync } from 'node:fs'
import { createContext } from 'node:vm'
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
 * Which collection of garbage follows a release. `idle`: the one for which V8 waits since the work of the start. `now`: V8 begins one in
 * steps; others, which also return memory to the system, follow when the process is idle. V8 makes these only after a collection that
 * had another reason, such as the growth of the heap by half, so that thousands of changes may leave tens of megabytes for ever.
 */
export type CollectionTime = 'none' | 'idle' | 'now'

/**
 * Lets V8 collect when the process is idle. V8 reduces an idle heap only while it believes that little is allocated, and its estimate stays
 * high if nothing happens at all after much work. It is right again after a context was made (V8 13.6, seen with --trace-memory-reducer:
 * 42 MB instead of 72 MB after thousands of changes). The collection follows within seconds, in steps.
 */
function allowIdleCollection(): void {
  createContext()
}

/** V8 begins to collect when so much memory of buffers came since its last collection. */
const pressingBytes = 96 << 20

/**
 * Begins a collection: a large buffer is the only reason for V8 to begin one in steps that a program can give. Nobody writes to the buffer,
 * so that it takes no memory, and the collection removes it (V8 14.6, seen with --trace-gc).
 */
function beginCollection(): void {
  // The bundler removes `new ArrayBuffer`, which nobody uses.
  Reflect.construct(ArrayBuffer, [pressingBytes])
}

/**
 * Prepares a collection if one is wanted, trims the heap of malloc, and unmaps all pages of unchanged files. These stay in the page cache:
 * what the process still uses it maps again at the next access, 16 pages at a time, which costs a microsecond.
 */
export function releaseMemory({ collection }: { readonly collection: CollectionTime }): void {
  if (collection !== 'none') allowIdleCollection()
  trimMalloc()
  const files = findUnchangedFiles(readFileSync('/proc/self/smaps', 'latin1'))
  for (const { start, end } of files) unmapFilePages(start, end)
  // The buffer fails where the address space of the process is limited. What else can be done is done then.
  if (collection === 'now') beginCollection()
}
