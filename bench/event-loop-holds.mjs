// Preloaded into the measured proxy: measures how long its event loop is held, in CPU time of the main thread, so that other processes on
// the processor do not count. Linux counts as ours what the hypervisor takes away meanwhile: a hold during which it took something
// (`steal` in /proc/stat) is left out. SIGUSR2 writes the longest hold since the last signal, in ms, to the file that SLUICE_HOLDS names.

import { readFileSync, writeFileSync } from 'node:fs'
import koffi from 'koffi'

/** CLOCK_THREAD_CPUTIME_ID. The figure in /proc is up to a tick late, four milliseconds. */
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
  // Reading the stolen time takes a tenth of a millisecond, so it is read only in every fourth turn and for a new maximum.
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
