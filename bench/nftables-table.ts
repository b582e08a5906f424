// Measures the table in the kernel alone, in a process that does nothing else: writing all of it, and reading it back after a restart.
//
//   nftables-table SERVICES ENDPOINTS      prints CPU in ms of the process, of its main thread, and of the main thread in the kernel

import { Ledger } from '../src/backend/ledger.ts'
import { nftables } from '../src/backend/nftables/backend.ts'
import type { NftEntry } from '../src/backend/nftables/entries.ts'
import { decodeEndpointSlice } from '../src/kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../src/kube/decode/decode-service.ts'
import { silentLogger } from '../src/lib/log.ts'
import { systemClock } from '../src/lib/time.ts'
import type { ServiceRecord, SliceRecord } from '../src/model/types.ts'
import { enterNamespace } from '../test/lab/entered-namespace.ts'
import { view } from '../test/support/builders.ts'
import { diffAtOnce, resetAtOnce } from '../test/support/ledger-at-once.ts'
import { resolve } from '../test/support/resolve.ts'
import { service, slice } from './api-objects.ts'
import { ownCpuMs, threadCpuMs } from './process-cost.ts'

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
  // Opened as after a kill: the table stays and has no owner. There is no other way to give it up without writing it again.
  const read = await cost(async () => (await open()).observe(signal))
  process.stdout.write(`${JSON.stringify({ written, read })}\n`)
} finally {
  namespace.leave()
}
process.exit()

async function cost(run: () => Promise<unknown>): Promise<Readonly<Record<string, number>>> {
  const before = { all: ownCpuMs(), main: threadCpuMs() }
  await run()
  const main = threadCpuMs()
  return {
    all: ownCpuMs() - before.all,
    main: main.all - before.main.all,
    kernel: main.system - before.main.system,
  }
}
