// Preloaded into the measured proxy: how long its event loop is held. On the main thread's own CPU time, so that others who have the
// processor do not count. Linux counts as ours what the hypervisor takes away meanwhile: a hold in which it took something (`steal` in
// /proc/stat) is left out. SIGUSR2 writes the longest hold since the last one, in ms, to the file that SLUICE_HOLDS names.

import { readFileSync, writeFileSync } from 'node:fs'
import koffi from 'koffi'

/** CLOCK_THREAD_CPUTIME_ID. What /proc tells of it is up to a tick late, four milliseconds. */
const threadTime = 3
const clock = koffi.load('libc.so.6').func('int clock_gettime(int, _Out_ uint8_t *)')
const time = Buffer.alloc(16)
const cpuMs = () => {
  clock(threadTime, time)
  const words = new BigInt64Array(time.buffer, time.byteOffset, 2)
  return Number(words[0]) * 1e3 + Number(words[1]) / 1e6
}
const stolen = () => Number(/^cpu (?: *\d+){7} (\d+)/.exec(readFileSync('/proc/stat', 'latin1'))?.[1] ?? 0)

let worst = 0
let last = cpuMs()
let before = stolen()
let turns = 0
setInterval(() => {
  const held = cpuMs() - last
  // Reading it takes a tenth of a millisecond: now and then, and when it matters.
  if (held > worst || ++turns % 4 === 0) {
    const now = stolen()
    if (now === before) worst = Math.max(worst, held)
    before = now
  }
  last = cpuMs()
}, 1).unref()
process.on('SIGUSR2', () => {
  writeFileSync(process.env.SLUICE_HOLDS, String(worst))
  worst = 0
})
