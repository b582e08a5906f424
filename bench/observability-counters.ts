// Measures short connections per second through nftables mode without counters, with them, and with packets and bytes, by turns in one run.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Backend, Held } from '../src/backend/backend.ts'
import { nftables } from '../src/backend/nftables/backend.ts'
import { FlowAccounting } from '../src/daemon/traffic/flow-accounting.ts'
import type { SyncReport } from '../src/engine/journal.ts'
import { silentLogger } from '../src/lib/log.ts'
import { systemClock } from '../src/lib/time.ts'
import { ensureSysctl } from '../src/sys/sysctl.ts'
import { InProcessProxy, scenario } from '../test/kernel/in-process-proxy.ts'
import { endpointSliceOf, serviceOf } from '../test/kernel/manifest-builders.ts'
import { enterNamespace } from '../test/lab/entered-namespace.ts'
import { type Bundle, bundleProgram } from '../test/support/bundle-program.ts'

const rounds = Number(process.env.ROUNDS ?? 8)
const connections = 10_000
const [port, vip, net] = [8080, '172.30.0.1', '10.180.1']

/** Returns the middle of the values. */
const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1] as number

async function runStorm(bundle: Bundle, ...args: readonly string[]) {
  const child = spawn(process.execPath, [bundle.file, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
  const [line] = await once(createInterface({ input: child.stdout }), 'line')
  return { child, line: line as string }
}

const variants = ['off', 'connections', 'connections, packets and bytes'] as const
type Variant = (typeof variants)[number]

interface Round {
  /** Without the start of the client. */
  readonly perSecond: number
  /** CPU time of the process of the proxy, in µs per connection. */
  readonly cpu: number
}

/** Counts packets and bytes of the service as the daemon does. */
function account({ engine }: InProcessProxy): FlowAccounting {
  const lost = () => {
    throw new Error('notifications were lost')
  }
  const accounting = new FlowAccounting({
    portsOf: (service, family) => engine.portsOf(service, family),
    journal: {
      subscribe(listener) {
        listener.report?.({ family: 4, services: ['ns/web'], ok: true } as unknown as SyncReport)
        return () => {}
      },
    },
    families: [4],
    nodeAddresses: () => [],
    metrics: { lost },
    clock: systemClock,
    log: silentLogger,
  })
  accounting.open()
  return accounting
}

async function measureRound(bundle: Bundle, variant: Variant): Promise<Round> {
  const backend = nftables({ counters: variant !== 'off' }) as unknown as Backend<Held>
  const proxy = await InProcessProxy.start(scenario('S11').node.nftables, { families: [4], backend })
  const hosts = [1, 2, 3, 4].map((i) => `${net}.${i}`)
  proxy.put(serviceOf('web', vip, [{ name: 'p', port }]), endpointSliceOf('web', hosts, port))
  proxy.synced()
  await proxy.settled()
  const hasBytes = variant === 'connections, packets and bytes'
  ensureSysctl('net/netfilter/nf_conntrack_acct', hasBytes ? 1 : 0)
  const accounting = hasBytes ? account(proxy) : undefined
  await runStorm(bundle, 'client', '1000', '10.1.0.1', String(port), `${vip}=${net}`)
  const before = process.cpuUsage()
  const { line } = await runStorm(bundle, 'client', String(connections), '10.1.0.1', String(port), `${vip}=${net}`)
  // All flows have ended by then, and the list makes the kernel report those that it has not looked at since.
  await sleep(2_000)
  await accounting?.read()
  const { user, system } = process.cpuUsage(before)
  const bytes = accounting?.of(4, 'ns/web:p')?.packetsIn ?? 0
  if (hasBytes && bytes < connections) throw new Error(`only ${bytes} packets were counted`)
  await accounting?.close()
  await proxy.stop()
  const { failed, p50 } = JSON.parse(line) as { failed: number; p50: number }
  if (failed > 0) throw new Error(`${failed} connections failed`)
  return { perSecond: 1e6 / p50, cpu: (user + system) / connections }
}

export async function measureCounters(): Promise<readonly string[]> {
  const bundle = await bundleProgram(join(import.meta.dirname, '../test/kernel/storm.worker.ts'))
  const namespace = enterNamespace()
  for (const ip of ['10.1.0.1', ...[1, 2, 3, 4].map((i) => `${net}.${i}`)])
    namespace.exec('ip', ['addr', 'add', `${ip}/32`, 'dev', 'lo'])
  namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
  for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
  namespace.exec('ip', ['route', 'add', '172.30.0.0/16', 'dev', 'out'])
  const { child } = await runStorm(bundle, 'server', String(port))
  // Flows end soon after their connections.
  ensureSysctl('net/netfilter/nf_conntrack_tcp_timeout_close', 1)
  const found = new Map<Variant, Round[]>(variants.map((variant) => [variant, []]))
  try {
    for (let i = 0; i < rounds; i++) {
      // The order alternates, so that a slow phase of the machine meets all.
      for (const variant of i % 2 === 0 ? variants : variants.toReversed())
        found.get(variant)?.push(await measureRound(bundle, variant))
    }
  } finally {
    child.kill('SIGKILL')
    namespace.leave()
    bundle.remove()
  }
  const row = (variant: Variant) => {
    const list = found.get(variant) ?? []
    const rates = list.map(({ perSecond }) => perSecond)
    const cpu = median(list.map((one) => one.cpu)).toFixed(0)
    const range = `${Math.min(...rates).toFixed(0)} to ${Math.max(...rates).toFixed(0)}`
    return `| ${variant} | ${median(rates).toFixed(0)} | ${range} | ${cpu} µs |`
  }
  return [
    '| counted | short connections per second (median of rounds, from the median connection of each) | range | CPU of the proxy per connection |',
    '| --- | --- | --- | --- |',
    ...variants.map(row),
    '',
    `${rounds} rounds of ${connections} connections each.`,
  ]
}
