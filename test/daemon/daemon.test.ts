import { describe, expect, it } from 'vitest'
import { resolveOptions } from '../../src/config/flags/options.ts'
import { runDaemon } from '../../src/daemon/daemon.ts'
import { createLogger } from '../../src/lib/log.ts'
import { MemoryKernel, memoryBackend } from '../support/memory-backend.ts'

describe('the daemon', () => {
  it('ends at once when it is stopped before it starts, while the rules of other modes are being removed', async () => {
    const argv = ['--master=http://127.0.0.1:1', '--hostname-override=node1', '--proxy-mode=nftables']
    const options = resolveOptions([...argv, '--healthz-bind-address=', '--metrics-bind-address='], () => '')
    let opened = 0
    const backend = memoryBackend(new Map([[4, new MemoryKernel()]]))
    const open = async (...context: Parameters<typeof backend.open>) => {
      opened++
      return backend.open(...context)
    }
    const log = createLogger({ format: 'text', verbosity: 0, vmodule: [], write: () => undefined })
    const signal = AbortSignal.abort(new Error('stopped by SIGTERM'))
    await runDaemon({ options, backend: { ...backend, open }, log, signal })
    expect(opened).toBe(0)
  })
})
