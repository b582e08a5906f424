import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { ClientCredentials } from '../../src/kube/credentials.ts'
import { silentLogger } from '../../src/lib/log.ts'
import type { Clock } from '../../src/lib/time.ts'

const hourMs = 3_600_000

it.each([-5 * hourMs, 5 * hourMs])(
  'reads a token file again in time when the wall clock jumps by %s ms',
  async (jump) => {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-token-'))
    const file = join(folder, 'token')
    const time = { wall: 1_700_000_000_000, elapsed: 0 }
    const clock: Clock = { now: () => time.wall, monotonic: () => time.elapsed, after: () => ({ cancel() {} }) }
    const credentials = new ClientCredentials({ kind: 'token-file', file, token: 'first' }, clock, silentLogger)
    writeFileSync(file, 'one')
    expect((await credentials.identity()).authorization).toBe('Bearer one')
    writeFileSync(file, 'two')
    time.wall += jump
    expect((await credentials.identity()).authorization).toBe('Bearer one')
    time.elapsed += hourMs
    expect((await credentials.identity()).authorization).toBe('Bearer two')
    rmSync(folder, { recursive: true })
  },
)
