// Shows that a mode is one folder and one registry line: a throw-away mode, whose kernel is a map, takes part in everything that
// knows modes, and no other file changes. docs/adding-a-mode.md describes the same steps for a real mode.

import { describe, expect, it } from 'vitest'
import { modes } from '../../src/backend/modes.ts'
import type { ProxyMode } from '../../src/backend/proxy-mode.ts'
import { proxyModes } from '../../src/config/settings-table.ts'
import type { SyncReport } from '../../src/engine/journal.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { counter } from '../../src/lib/metric-declaration.ts'
import { commonBehaviour } from '../../src/model/mode-behaviour.ts'
import { loadScenarios } from '../scenarios/load.ts'
import { MemoryKernel, memoryBackend } from '../support/memory-backend.ts'

const kernels = new Map([4, 6].map((family) => [family as 4 | 6, new MemoryKernel()]))

/** The folder of the mode. */
const memoryMode: ProxyMode = {
  name: 'memory',
  makeBackend: () => ({ ...memoryBackend(kernels), name: 'memory' }),
  behaviour: () => ({ ...commonBehaviour, name: 'memory', localhostNodePorts: { 4: 'named', 6: 'named' } }),
  explain: {
    remarks: ['A map has no packets.'],
    listCommand: 'true',
  },
  metrics: {
    declarations: [counter('kubeproxy_sync_proxy_rules_memory_failures_total', ['ip_family'], 'Syncs that failed.')],
    noLocalUnit: 'service-ports',
    failureFigures: () => ['memory_failures'],
  },
  doctor: {
    needsNetAdmin: false,
    filesPerConnection: 0,
    findings: async () => [
      { level: 'note', about: 'memory', found: 'a map', meaning: 'It forgets.', todo: 'Nothing.' },
    ],
    migration: { leaving: [], entering: { differences: [], advice: 'Forget it.' } },
  },
  traffic: { flowRemarks: [], countsBytes: false, traceObstacle: '' },
  leftovers: {
    find: async () =>
      [...kernels.values()].some(({ held }) => held.size > 0)
        ? [{ mode: 'memory', what: 'entries', where: 'a map' }]
        : [],
    cleanup: async () => {
      for (const { held } of kernels.values()) held.clear()
    },
  },
}

// The line in src/backend/modes.ts and the word in the table of the configuration. Both are lists that are complete before any other
// module reads them, so the test imports those modules afterwards.
const registry = modes as ProxyMode[]
registry.push(memoryMode)
const words = proxyModes as unknown as string[]
words.push('memory')
const { findMode } = await import('../../src/backend/modes.ts')
const { findLeftovers } = await import('../../src/backend/leftovers.ts')
const { resolveOptions } = await import('../../src/config/flags/options.ts')
const { createMetrics } = await import('../../src/http/metrics.ts')
const { formatMetricDocs } = await import('../../src/http/metric-table.ts')
const { examineMachine } = await import('../../src/commands/doctor/machine.ts')
const { formatCommandDocs } = await import('../../src/commands/command-list.ts')
const { checkTraces } = await import('../model/corpus-trace.ts')
const { checkExplanations } = await import('../inspect/corpus-explain.ts')

const failedSync: SyncReport = {
  backend: '',
  family: 4,
  startedAt: 0,
  causes: [],
  durationMs: 1,
  full: true,
  ok: false,
  put: 0,
  dropped: 0,
  held: 0,
  services: [],
  refused: [],
  triggers: [],
  noLocal: { internal: 0, external: 0 },
  noLocalServices: { internal: 0, external: 0 },
  udpChanged: false,
  figures: {},
}

const scenarios = loadScenarios().filter((scenario) => scenario.modes.includes('nftables'))

describe('a mode that was only registered', () => {
  it.each(scenarios.map((scenario) => [scenario.name, scenario] as const))('traces %s', (_, scenario) => {
    checkTraces(scenario, 'nftables', memoryMode)
  })

  it.each(scenarios.map((scenario) => [scenario.name, scenario] as const))('explains %s', (_, scenario) =>
    checkExplanations(scenario, 'nftables', memoryMode),
  )

  it('is accepted by the configuration', () => {
    const { config } = resolveOptions(['--proxy-mode=memory'], () => '')
    expect(findMode(config.mode)).toBe(memoryMode)
  })

  it('has its metrics, and they are documented', async () => {
    const version = { kubernetes: 'v1.36.4', sluice: '0' }
    const metrics = createMetrics({ mode: memoryMode, version, log: silentLogger, processMetrics: false })
    metrics.journal.report({ ...failedSync, backend: 'memory' })
    expect(await metrics.text()).toContain('kubeproxy_sync_proxy_rules_memory_failures_total{ip_family="IPv4"} 1')
    expect(formatMetricDocs()).toContain(
      '| `kubeproxy_sync_proxy_rules_memory_failures_total` | counter | ip_family | – | memory |',
    )
  })

  it('has its findings in the doctor', async () => {
    const findings = await examineMachine(memoryMode)
    expect(findings.find(({ about }) => about === 'memory')?.found).toBe('a map')
    expect(findings.find(({ about }) => about === 'mode memory')).toMatchObject({ level: 'ok' })
  })

  it('is offered by the commands', async () => {
    expect(await formatCommandDocs()).toContain('userspace, memory')
    expect(await formatCommandDocs()).toContain('what would change: nftables or memory')
  })

  it('is found on the node and cleaned up', async () => {
    kernels.get(4)?.write('frontend x', { id: 'frontend x', kind: 'frontend', digest: '' })
    expect((await findLeftovers()).filter(({ mode }) => mode === 'memory')).toHaveLength(1)
    await findMode('memory').leftovers.cleanup(silentLogger)
    expect((await findLeftovers()).filter(({ mode }) => mode === 'memory')).toHaveLength(0)
  })
})
