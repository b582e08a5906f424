// Preloaded into the measured proxy: how long its event loop is held. On the main thread's own CPU time, so that others who have the
// processor do not count. SIGUSR2 writes the longest hold since the last one, in ms, to the file that SLUICE_HOLDS names.

import { openSync, readSync, writeFileSync } from 'node:fs'

const stat = openSync('/proc/self/schedstat', 'r')
const text = Buffer.alloc(64)
const cpuMs = () => Number(text.toString('latin1', 0, readSync(stat, text, 0, 64, 0)).split(' ')[0]) / 1e6

let worst = 0
let last = cpuMs()
setInterval(() => {
  const now = cpuMs()
  worst = Math.max(worst, now - last)
  last = now
}, 1).unref()
process.on('SIGUSR2', () => {
  writeFileSync(process.env.SLUICE_HOLDS, String(worst))
  worst = 0
})
