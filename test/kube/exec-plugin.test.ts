// Tests that an exec plugin that hangs is reported, is killed with its children, and does not stop the client from asking again.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import type { ExecPlugin } from '../../src/kube/connection.ts'
import type { ProxyError } from '../../src/lib/errors.ts'
import { fastClock } from '../support/fast-clock.ts'
import { until } from '../support/until.ts'
import { clientTo, connectionTo, json, ScriptServer } from './script-server.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

const answer = `echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}'`

/** Returns the folder in which the plugin runs, and a client with it. */
async function prepare(script: string, factor: number) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-plugin-'))
  cleanups.push(() => rmSync(folder, { recursive: true }))
  const command = join(folder, 'plugin')
  writeFileSync(command, `#!/bin/sh\ncd ${folder}\n${script}\n`, { mode: 0o755 })
  const apiVersion = 'client.authentication.k8s.io/v1'
  const plugin: ExecPlugin = { apiVersion, command, args: [], env: {}, installHint: '', cluster: undefined }
  const server = await new ScriptServer(json({})).start()
  cleanups.push(() => server.stop())
  const client = clientTo(connectionTo(server.url, { auth: { kind: 'exec', plugin } }), fastClock(factor))
  cleanups.push(() => client.close())
  const readPids = () => readFileSync(join(folder, 'pids'), 'utf8').trim().split('\n').map(Number)
  return { client, server, readPids }
}

function isAlive(pid: number): boolean {
  try {
    // A zombie is dead: it only waits for its parent, which may be the first process of a container.
    return !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}

/** Ignores SIGTERM, and so does its child. */
const stubborn = `trap '' TERM
echo $$ >> pids
sh -c 'trap "" TERM; echo $$ >> pids; while :; do sleep 1; done' &
while :; do sleep 1; done`

it('reports a plugin that hangs, kills it with its children, and asks again', async () => {
  const script = `echo run >> runs; [ $(wc -l < runs) -gt 1 ] && { ${answer}; exit; }\n${stubborn}`
  const { client, server, readPids } = await prepare(script, 40)
  const error = await client.request({ path: '/' }).then(
    () => undefined,
    (reason: ProxyError) => reason,
  )
  expect(error).toMatchObject({ code: 'credentials', message: expect.stringContaining('does not end within 60 s') })
  await client.request({ path: '/' })
  expect(server.seen).toHaveLength(1)
  await until('the end of both processes', () => readPids().length === 2 && !readPids().some(isAlive))
})

it('kills a plugin and its children when the client closes', async () => {
  const { client, readPids } = await prepare(stubborn, 1)
  const request = client.request({ path: '/' })
  request.catch(() => {})
  await until('both processes', () => readPids().length === 2)
  client.close()
  await expect(request).rejects.toMatchObject({ code: 'closed' })
  await until('the end of both processes', () => !readPids().some(isAlive), { limitMs: 1_500 })
})

it('does not wait for a child that keeps the output of its plugin open', async () => {
  const { client, readPids } = await prepare(`sleep 1000 & echo $! > pids; ${answer}`, 10)
  await client.request({ path: '/' })
  await until('the end of the child', () => !readPids().some(isAlive))
})

it('refuses a plugin that prints without end', async () => {
  const { client } = await prepare('exec yes', 1)
  await expect(client.request({ path: '/' })).rejects.toThrow('prints more than 1048576 bytes')
})
