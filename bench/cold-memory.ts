// Measures what memory costs this machine after a sleep: how long one access takes in a walk through a small piece of memory, with the
// walks back to back and with a pause before each. It explains what a lone change costs (docs/benchmarks.md).
//
//   npx tsx bench/cold-memory.ts
//
// Every step of the walk is at a place that the step before names, so that the processor cannot fetch places ahead.

import { setTimeout as wait } from 'node:timers/promises'

const lineWords = 16
const walks = 300

/** A ring of places, one in each cache line of so many bytes, in random order. */
function makeRing(bytes: number): Int32Array {
  const ring = new Int32Array(bytes / 4)
  const places = Array.from({ length: bytes / 4 / lineWords }, (_, i) => i * lineWords)
  for (let i = places.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1))
    const place = places[i] as number
    places[i] = places[j] as number
    places[j] = place
  }
  for (const [i, place] of places.entries()) ring[place] = places[(i + 1) % places.length] as number
  return ring
}

function walk(ring: Int32Array): number {
  let place = 0
  for (let i = ring.length / lineWords; i > 0; i--) place = ring[place] as number
  return place
}

async function measure(ring: Int32Array, pauseMs: number): Promise<number> {
  const times: number[] = []
  for (let i = 0; i < walks; i++) {
    if (pauseMs > 0) await wait(pauseMs)
    const start = process.hrtime.bigint()
    walk(ring)
    times.push(Number(process.hrtime.bigint() - start))
  }
  times.sort((a, b) => a - b)
  return (times[walks >> 1] as number) / (ring.length / lineWords)
}

const pauses = [0, 1, 2, 10]
console.log(`| memory | ${pauses.map((ms) => (ms === 0 ? 'back to back' : `after ${ms} ms`)).join(' | ')} |`)
for (const kilobytes of [64, 256, 1024]) {
  const ring = makeRing(kilobytes << 10)
  for (let i = 0; i < walks; i++) walk(ring)
  const found: string[] = []
  for (const ms of pauses) found.push(`${(await measure(ring, ms)).toFixed(0)} ns`)
  console.log(`| ${kilobytes} KB | ${found.join(' | ')} |`)
}
