// Returns memory to the kernel that this process does not use now. The start is the reason: it runs code that never runs again, reads
// V8's snapshot from the executable, and compiles, which leaves the heap of malloc full of holes.

import { readFileSync } from 'node:fs'
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
 * Unmaps all pages of such files, and trims the heap of malloc. The pages stay in the page cache: what the process still uses it maps again
 * at the next access, 16 pages at a time, which costs a microsecond.
 */
export function releaseMemory(): void {
  trimMalloc()
  for (const { start, end } of findUnchangedFiles(readFileSync('/proc/self/smaps', 'latin1')))
    unmapFilePages(start, end)
}
