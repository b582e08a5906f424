// kill -9 at any moment: whatever was acknowledged is there after the restart, exactly once, and nothing is leaked.

import { type ChildProcess, spawn } from 'node:child_process'
import { appendFileSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
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
  /** Its deletion was asked for but not acknowledged: either is right. */
  uncertain: boolean
  note: string
}

/** Runs a writer for a while, kills it, and takes over what it had acknowledged. */
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
  it('loses no acknowledged write, in rounds of kill -9 under load', async () => {
    const known = new Map<string, Known>()
    let writes = 0
    for (let round = 0; round < 12; round++) {
      const run = await runAndKill(round, known, 40 + 60 * (round % 5))
      writes += run.writes
      const server = await start({ stateDir: state.path, tls: false })
      const found = new Map(
        [...server.registry.list('services', 'default')].map(({ object }) => [
          (object.metadata as { name: string }).name,
          object,
        ]),
      )
      for (const [name, { ip, port, uncertain, note }] of known) {
        const object = found.get(name) as
          | {
              spec: { clusterIP: string; ports: { nodePort: number }[] }
              metadata: { annotations?: Record<string, string> }
            }
          | undefined
        if (object === undefined) {
          expect(uncertain, `${name} was acknowledged and is gone`).toBe(true)
          known.delete(name)
          continue
        }
        expect([object.spec.clusterIP, String(object.spec.ports[0]?.nodePort)], name).toEqual([ip, port])
        if (note !== '') expect(object.metadata.annotations?.i, name).toBe(note)
      }
      // What was asked for but not acknowledged may be there; what was never asked for may not.
      for (const [name, object] of found) {
        if (known.has(name) || name === 'kubernetes') continue
        const { ip, port } = addresses(object)
        known.set(name, { ip, port, uncertain: true, note: '' })
        expect(name).toMatch(/^s-\d+-\d+-\d+$/)
      }
      const ips = [...found.values()].map((object) => addresses(object).ip)
      expect(new Set(ips).size, 'an address was given twice').toBe(ips.length)
      expect(server.registry.head).toBeGreaterThanOrEqual(run.last)
      await server.close()
    }
    expect(writes).toBeGreaterThan(200)
  }, 180_000)

  it('drops a torn last line, and only that, wherever it was cut', async () => {
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
      const names = [...server.registry.list('services')].map(
        ({ object }) => (object.metadata as { name: string }).name,
      )
      expect(names, `cut at ${cut}`).toEqual(['kept', 'kubernetes'])
      await ask('after')
      await server.close()
      server = await start({ stateDir: state.path, tls: false })
      expect(server.registry.find('services', 'default', 'after'), `written behind a cut at ${cut}`).toBeDefined()
      await server.close()
    }
  })

  it('refuses to guess when the damage is in the middle, and says where', async () => {
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

  it('ignores a snapshot that was not finished', async () => {
    let server = await start({ stateDir: state.path, tls: false })
    await server.client.request({ method: 'POST', path: services, body: service('a') })
    await server.close()
    appendFileSync(join(state.path, 'registry', '2.snapshot.part'), 'half')
    server = await start({ stateDir: state.path, tls: false })
    expect(server.registry.find('services', 'default', 'a')).toBeDefined()
    await server.close()
    expect(readdirSync(join(state.path, 'registry'))).toEqual(['1.journal'])
  })

  it('lets no second server use the same directory, and is not fooled by a dead one', async () => {
    const first = await start({ stateDir: state.path, tls: false })
    await expect(start({ stateDir: state.path, tls: false })).rejects.toThrow(/in use by process \d+/)
    await first.close()
    writeFileSync(join(state.path, 'registry', 'owner'), `${process.pid} 1 another-boot\n`)
    const second = await start({ stateDir: state.path, tls: false })
    await second.close()
  })

  it('keeps the token and the certificate, so that kubeconfigs go on working', async () => {
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

function addresses(object: unknown): { ip: string; port: string } {
  const { spec } = object as { spec: { clusterIP: string; ports: { nodePort?: number }[] } }
  return { ip: spec.clusterIP, port: String(spec.ports[0]?.nodePort) }
}
