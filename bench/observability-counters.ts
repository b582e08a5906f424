// Measures short connections per second through nftables mode with counters and without, by turns in one run.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Backend, Held } from '../src/backend/backend.ts'
import { nftables } from '../src/backend/nftables/backend.ts'
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

/** Returns connections per second, without the start of the client. */
async function measureRound(bundle: Bundle, counters: boolean): Promise<number> {
  const backend = nftables({ counters }) as unknown as Backend<Held>
  const proxy = await InProcessProxy.start(scenario('S11').node.nftables, { families: [4], backend })
  const hosts = [1, 2, 3, 4].map((i) => `${net}.${i}`)
  proxy.put(serviceOf('web', vip, [{ name: 'p', port }]), endpointSliceOf('web', hosts, port))
  proxy.synced()
  await proxy.settled()
  await runStorm(bundle, 'client', '1000', '10.1.0.1', String(port), `${vip}=${net}`)
  const { line } = await runStorm(bundle, 'client', String(connections), '10.1.0.1', String(port), `${vip}=${net}`)
  await proxy.stop()
  const { failed, p50 } = JSON.parse(line) as { failed: number; p50: number }
  if (failed > 0) throw new Error(`${failed} connections failed`)
  return 1e6 / p50
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
  const [off, on]: [number[], number[]] = [[], []]
  try {
    for (let i = 0; i < rounds; i++) {
      // The order alternates, so that a slow phase of the machine meets both.
      for (const counters of i % 2 === 0 ? [false, true] : [true, false])
        (counters ? on : off).push(await measureRound(bundle, counters))
    }
  } finally {
    child.kill('SIGKILL')
    namespace.leave()
    bundle.remove()
  }
  const row = (name: string, values: readonly number[]) =>
    `| ${name} | ${median(values).toFixed(0)} | ${Math.min(...values).toFixed(0)} to ${Math.max(...values).toFixed(0)} |`
  return [
    '| counters | short connections per second (median of rounds, from the median connection of each) | range |',
    '| --- | --- | --- |',
    row('off', off),
    row('on', on),
    '',
    `Difference of the medians: ${((median(on) / median(off) - 1) * 100).toFixed(2)} %, ${rounds} rounds of ${connections} connections each.`,
  ]
}
