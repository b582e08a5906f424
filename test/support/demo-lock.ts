// One test file at a time runs `sluice up --demo`: the demo has fixed names of namespaces and a fixed admin socket.

import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
import { afterAll, beforeAll } from 'vitest'
import { until } from './until.ts'

const limitMs = 600_000

/** An abstract address that only one process can have. The kernel frees it when the process ends, however it ends. */
const address = '\0sluice-test-demo'

async function listen(): Promise<Server> {
  const server = createServer()
  server.listen(address)
  await once(server, 'listening')
  return server
}

/** Holds the lock while the tests of this file run. */
export function lockDemo(): void {
  let server: Server | undefined
  beforeAll(async () => {
    server = await until('no other test file runs the demo', listen, { limitMs, everyMs: 200 })
  }, limitMs)
  afterAll(() => void server?.close())
}
