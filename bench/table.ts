// What the kernel's table costs by itself, in a process that does nothing else: written from nothing, and read back after a restart.
//
//   table SERVICES ENDPOINTS      prints CPU in ms: of the whole process, of its main thread, and of the main thread in the kernel

import { readFileSync } from 'node:fs'
import { Ledger } from '../src/backend/ledger.ts'
import { nftables } from '../src/backend/nftables/backend.ts'
import type { NftEntry } from '../src/backend/nftables/entries.ts'
import { decodeEndpointSlice } from '../src/kube/reflect/decode-endpoint-slice.ts'
import { decodeService } from '../src/kube/reflect/decode-service.ts'
import { silentLogger } from '../src/lib/log.ts'
import { systemClock } from '../src/lib/time.ts'
import { resolve } from '../src/model/resolve.ts'
import type { ServiceRecord, SliceRecord } from '../src/model/types.ts'
import { enterNamespace } from '../test/lab/entered-namespace.ts'
import { view } from '../test/support/builders.ts'
import { diffAtOnce, resetAtOnce } from '../test/support/ledger-at-once.ts'
import { service, slice } from './objects.ts'

const [services, endpoints] = process.argv.slice(2).map(Number) as [number, number]
const { signal } = new AbortController()
const node = view()
const backend = nftables()
const namespace = enterNamespace()
try {
  const open = () =>
    backend.open({ family: 4, node, log: silentLogger, clock: systemClock, onDrift: () => {}, onDue: () => {} })
  const ledger = new Ledger<NftEntry>()
  ledger.want('', backend.base(node))
  for (let i = 0; i < services; i++) {
    const record = decodeService(service(i)).record as ServiceRecord
    const slices = [decodeEndpointSlice(slice(i, endpoints, 0)).record as SliceRecord]
    const ports = resolve(record, slices, node)
    ledger.want(
      record.key,
      ports.flatMap((port) => backend.plan(port, node)),
    )
  }
  const target = await open()
  resetAtOnce(ledger, await target.observe(signal))
  const changes = diffAtOnce(ledger)
  const written = await cost(() => target.apply(changes, signal, ledger.wanted()))
  // As after a kill: the table stays and is nobody's. There is no other way to give it up without writing it anew.
  const read = await cost(async () => (await open()).observe(signal))
  process.stdout.write(`${JSON.stringify({ written, read })}\n`)
} finally {
  namespace.leave()
}
process.exit()

async function cost(run: () => Promise<unknown>): Promise<Readonly<Record<string, number>>> {
  const before = [cpu(), ticks()] as const
  await run()
  const after = [cpu(), ticks()] as const
  return { all: after[0] - before[0], main: after[1].all - before[1].all, kernel: after[1].system - before[1].system }
}

function cpu(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

/** Of this thread. */
function ticks(): { readonly all: number; readonly system: number } {
  const fields = readFileSync('/proc/thread-self/stat', 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ')
  const system = Number(fields[12]) * 10
  return { all: Number(fields[11]) * 10 + system, system }
}
