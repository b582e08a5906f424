// A server for crash.test.ts to kill: it writes as fast as it can, and prints each write after it was acknowledged.

import { writeSync } from 'node:fs'
import { startApiServer } from '../../../src/apiserver/start.ts'
import { silentLogger } from '../../../src/lib/log.ts'

const [stateDir, round, writers] = process.argv.slice(2) as [string, string, string]
const server = await startApiServer({
  log: silentLogger,
  stateDir,
  tls: false,
  // Small, so that it is also killed between and during snapshots.
  compactBytes: Number(round) % 2 === 0 ? 20_000 : 4_000_000,
})
const path = '/api/v1/namespaces/default/services'
// The line must be written before the next request: SIGKILL would lose a buffered line.
const print = (line: string) => writeSync(1, `${line}\n`)
print('up')

async function write(writer: number): Promise<void> {
  for (let i = 0; ; i++) {
    const name = `s-${round}-${writer}-${i}`
    const body = { metadata: { name }, spec: { type: 'NodePort', ports: [{ port: 80 }] } }
    const { json } = await server.client.request({ method: 'POST', path, body })
    const { metadata, spec } = json as {
      metadata: { resourceVersion: string }
      spec: { clusterIP: string; ports: { nodePort: number }[] }
    }
    print(`put ${name} ${metadata.resourceVersion} ${spec.clusterIP} ${spec.ports[0]?.nodePort}`)
    if (i % 3 === 0) {
      const annotations = { round, i: String(i), padding: 'x'.repeat(500) }
      const changed = await server.client.request({
        method: 'PATCH',
        path: `${path}/${name}`,
        contentType: 'application/merge-patch+json',
        body: { metadata: { annotations } },
      })
      print(`note ${name} ${i} ${(changed.json as { metadata: { resourceVersion: string } }).metadata.resourceVersion}`)
    }
    if (i % 5 !== 4) {
      print(`drop? ${name}`)
      await server.client.request({ method: 'DELETE', path: `${path}/${name}` })
      print(`drop ${name}`)
    }
  }
}

await Promise.all(Array.from({ length: Number(writers) }, (_, writer) => write(writer)))
