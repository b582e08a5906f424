import { readFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { RunningProxies } from '../../src/daemon/running-proxies.ts'
import { createLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { until } from '../support/until.ts'

const opened: (() => void)[] = []

afterEach(() => {
  for (const close of opened.splice(0)) close()
})

function open(mode: Mode, metricsPorts: readonly number[] = []): { proxies: RunningProxies; logged: () => string } {
  let logged = ''
  const log = createLogger({ format: 'text', verbosity: 0, write: (line) => (logged += line) })
  const proxies = new RunningProxies({ mode, log, clock: systemClock, metricsPorts })
  proxies.start()
  opened.push(() => proxies.close())
  return { proxies, logged: () => logged }
}

const hasName = (name: string): boolean => readFileSync('/proc/net/unix', 'utf8').includes(`@${name}`)

async function serveMode(text: string): Promise<number> {
  const server: Server = createServer((_, response) => response.end(text))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  opened.push(() => server.close())
  return (server.address() as AddressInfo).port
}

describe.runIf(process.platform === 'linux')('RunningProxies', () => {
  it('finds a proxy of another mode, and both say it, also when it ends', async () => {
    const old = open('userspace')
    await until('it listens', () => hasName('sluice-proxy-userspace'))
    const next = open('ipvs')
    expect(await next.proxies.listModes()).toEqual(new Set(['userspace']))
    await until('the old one says it', () => old.logged().includes('has started on this node; both serve'))
    expect(next.logged()).toContain('Another proxy runs on this node; both serve until it ends" mode="userspace"')
    const begun = performance.now()
    const ended = next.proxies.waitForEnd(60_000, new AbortController().signal)
    old.proxies.close()
    await ended
    expect(performance.now() - begun).toBeLessThan(30_000)
    expect(await next.proxies.listModes()).toEqual(new Set())
  })

  it('finds kube-proxy by its metrics port, and does not take itself for another', async () => {
    const ports = [await serveMode('iptables'), await serveMode('x'.repeat(1 << 20))]
    expect(await open('nftables', ports).proxies.listModes()).toEqual(new Set(['iptables']))
    expect(await open('iptables', ports).proxies.listModes()).not.toContain('iptables')
  })

  it('stops waiting when the signal aborts', async () => {
    const stop = new AbortController()
    const waiting = open('nftables').proxies.waitForEnd(60_000, stop.signal)
    stop.abort(new Error('stopped'))
    await expect(waiting).rejects.toThrow('stopped')
  })
})
