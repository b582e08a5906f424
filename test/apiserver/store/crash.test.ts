// Kills a server with SIGKILL at any moment: after the restart every acknowledged write is there exactly once, and no address leaks.

import { type ChildProcess, spawn } from 'node:child_process'
import { appendFileSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Json } from '../../../src/apiserver/schema/json.ts'
import { nameOf } from '../../../src/apiserver/schema/object-metadata.ts'
import { folder, post, service, services, start } from '../test-server.ts'

const worker = fileURLToPath(new URL('crash.worker.ts', import.meta.url))
let state: ReturnType<typeof folder>
beforeEach(() => {
  state = folder()
})
afterEach(() => state.remove())

interface Known {
  readonly ip: string
  readonly port: string
  /** True if its deletion was requested but not acknowledged: the service may exist or not. */
  uncertain: boolean
  note: string
}

/** Runs a writer for a while, kills it, and adds the writes that it acknowledged to `known`. */
async function runAndKill(
  round: number,
  known: Map<string, Known>,
  lifeMs: number,
): Promise<{ last: number; writes: number }> {
  const child: ChildProcess = spawn(process.execPath, ['--import', 'tsx', worker, state.path, String(round), '4'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let output = ''
  const up = new Promise<void>((resolve) => {
    child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
      output += chunk
      if (output.includes('up\n')) resolve()
    })
  })
  const gone = new Promise<void>((resolve) => child.once('close', () => resolve()))
  await Promise.race([up, gone])
  await new Promise((resolve) => setTimeout(resolve, lifeMs))
  child.kill('SIGKILL')
  await gone
  let last = 0
  let writes = 0
  const lines = output.split('\n')
  lines.pop()
  for (const line of lines) {
    const [what, name = '', a = '', b = '', c = ''] = line.split(' ')
    if (what === 'put') known.set(name, { ip: b, port: c, uncertain: false, note: '' })
    if (what === 'note') (known.get(name) as Known).note = a
    if (what === 'drop?') (known.get(name) as Known).uncertain = true
    if (what === 'drop') known.delete(name)
    if (what === 'put') last = Math.max(last, Number(a))
    if (what === 'note') last = Math.max(last, Number(b))
    if (what !== 'up') writes++
  }
  return { last, writes }
}

describe('a server that is killed', () => {
  it('loses no acknowledged write in rounds of SIGKILL under load', async () => {
    const known = new Map<string, Known>()
    let writes = 0
    for (let round = 0; round < 12; round++) {
      const run = await runAndKill(round, known, 40 + 60 * (round % 5))
      writes += run.writes
      const server = await start({ stateDir: state.path, tls: false })
      const found = new Map(
        [...server.registry.list('services', 'default')].map(({ object }) => [nameOf(object), object as StoredService]),
      )
      expectAcknowledged(known, found)
      addUnacknowledged(known, found)
      const ips = [...found.values()].map((service) => service.spec.clusterIP)
      expect(new Set(ips).size, 'an address was given twice').toBe(ips.length)
      expect(server.registry.head).toBeGreaterThanOrEqual(run.last)
      await server.close()
    }
    // Enough to have been killed amid writes; how many there are depends on the machine.
    expect(writes).toBeGreaterThan(20)
  }, 180_000)

  it('drops a torn last line and nothing else, wherever it was cut', async () => {
    let server = await start({ stateDir: state.path, tls: false })
    const ask = (name: string) => server.client.request({ method: 'POST', path: services, body: service(name) })
    await ask('kept')
    await server.close()
    const journal = join(
      state.path,
      'registry',
      readdirSync(join(state.path, 'registry')).find((name) => name.endsWith('.journal')) as string,
    )
    const good = readFileSync(journal)
    server = await start({ stateDir: state.path, tls: false })
    await ask('torn')
    await server.close()
    const full = readFileSync(journal)
    for (const cut of [good.length, good.length + 1, good.length + 9, good.length + 40, full.length - 1]) {
      writeFileSync(journal, full.subarray(0, cut))
      server = await start({ stateDir: state.path, tls: false })
      const names = [...server.registry.list('services')].map(({ object }) => nameOf(object))
      expect(names, `cut at ${cut}`).toEqual(['kept', 'kubernetes'])
      await ask('after')
      await server.close()
      server = await start({ stateDir: state.path, tls: false })
      expect(server.registry.find('services', 'default', 'after'), `written behind a cut at ${cut}`).toBeDefined()
      await server.close()
    }
  })

  it('refuses to start when the damage is in the middle, and names the file and the byte', async () => {
    const server = await start({ stateDir: state.path, tls: false })
    for (const name of ['a', 'b', 'c'])
      await server.client.request({ method: 'POST', path: services, body: service(name) })
    await server.close()
    const journal = join(state.path, 'registry', '1.journal')
    const bytes = readFileSync(journal)
    const at = bytes.indexOf('"b"')
    bytes[at + 1] = 0x78
    writeFileSync(journal, bytes)
    await expect(start({ stateDir: state.path, tls: false })).rejects.toThrow(/1\.journal is damaged at byte \d+/)
  })

  it('ignores an unfinished snapshot', async () => {
    let server = await start({ stateDir: state.path, tls: false })
    await server.client.request({ method: 'POST', path: services, body: service('a') })
    await server.close()
    appendFileSync(join(state.path, 'registry', '2.snapshot.part'), 'half')
    server = await start({ stateDir: state.path, tls: false })
    expect(server.registry.find('services', 'default', 'a')).toBeDefined()
    await server.close()
    expect(readdirSync(join(state.path, 'registry'))).toEqual(['1.journal'])
  })

  it('refuses a directory that another server uses, and ignores the lock of a dead one', async () => {
    const first = await start({ stateDir: state.path, tls: false })
    await expect(start({ stateDir: state.path, tls: false })).rejects.toThrow(/in use by process \d+/)
    await first.close()
    writeFileSync(join(state.path, 'registry', 'owner'), `${process.pid} 1 another-boot\n`)
    const second = await start({ stateDir: state.path, tls: false })
    await second.close()
  })

  it('keeps the token and the certificate, so that kubeconfigs keep working', async () => {
    const first = await start({ stateDir: state.path })
    const before = first.kubeconfig()
    const { port } = first
    await post(first, services, service('a'))
    await first.close()
    const second = await start({ stateDir: state.path, port })
    expect(second.kubeconfig()).toBe(before)
    await second.close()
  })
})

type StoredService = Json & {
  readonly metadata: { readonly annotations?: Record<string, string> }
  readonly spec: { readonly clusterIP: string; readonly ports: readonly { readonly nodePort?: number }[] }
}

const nodePortOf = ({ spec }: StoredService): string => String(spec.ports[0]?.nodePort)

/** Checks that every acknowledged service is there; a service whose deletion is uncertain may be gone. */
function expectAcknowledged(known: Map<string, Known>, found: ReadonlyMap<string, StoredService>): void {
  for (const [name, { ip, port, uncertain, note }] of known) {
    const service = found.get(name)
    if (service === undefined) {
      expect(uncertain, `${name} was acknowledged and is gone`).toBe(true)
      known.delete(name)
      continue
    }
    expect([service.spec.clusterIP, nodePortOf(service)], name).toEqual([ip, port])
    if (note !== '') expect(service.metadata.annotations?.i, name).toBe(note)
  }
}

/** A write that was requested but not acknowledged may be there. A service that no writer requested may not. */
function addUnacknowledged(known: Map<string, Known>, found: ReadonlyMap<string, StoredService>): void {
  for (const [name, service] of found) {
    if (known.has(name) || name === 'kubernetes') continue
    expect(name).toMatch(/^s-\d+-\d+-\d+$/)
    known.set(name, { ip: service.spec.clusterIP, port: nodePortOf(service), uncertain: true, note: '' })
  }
}
