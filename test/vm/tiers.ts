// Which test files run under other kernels, by tier, and how one VM runs several of them.

import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { boot } from './boot.ts'
import { bundleTests } from './bundle-tests.ts'
import type { Kernel } from './kernel.ts'
import type { Outcome } from './runner.worker.ts'
import type { Traits } from './traits.worker.ts'

const inKernel = (...names: string[]) => names.map((name) => `test/kernel/${name}.test.ts`)

/** The corpus comes last: it takes longest. */
export const tiers: Readonly<Record<string, readonly string[]>> = {
  nftables: inKernel(
    ...[
      'netlink',
      'netlink-nftables',
      'conntrack',
      'nftables-readable',
      'nftables-tamper',
      'nftables-limits',
      'nftables-crash',
    ],
    'nftables',
  ),
  iptables: inKernel(...['iptables-sys', 'iptables-drift', 'iptables-life', 'iptables-legacy'], 'iptables'),
  ipvs: readdirSync(join(import.meta.dirname, '../ipvs'))
    .filter((name) => name.endsWith('.test.ts'))
    .sort((a, b) => Number(a === 'corpus.test.ts') - Number(b === 'corpus.test.ts'))
    .map((name) => `test/ipvs/${name}`),
}

/** Enough to know what works under a kernel; loops of kills and large tables say more of the proxy than of the kernel. */
export const quickFiles = (tier: string): readonly string[] =>
  (tiers[tier] ?? []).filter((file) => !/(crash|limits|drift|life|lifecycle|takeover|legacy)\.test\.ts$/.test(file))

/** The versions people speak of; otherwise a suite, or suite:package. */
const versions: Readonly<Record<string, string>> = {
  '5.10': 'bullseye',
  '6.1': 'bookworm',
  '6.12': 'trixie',
  newest: 'trixie-backports',
}
export const kernelNames = Object.keys(versions)
export const suiteOf = (name: string): string => versions[name] ?? name

/** Loads what tests need; a machine that lacks it fails the tests, not this. */
export const loadModules = 'modprobe -aq ip_vs nf_conntrack nf_conntrack_netlink ip_set xt_set dummy nf_tables'
/** For Node: its compiler pays even in an emulated CPU, where what it makes is translated once more. */
const nodeArgs = process.env.SLUICE_VM_NODE ?? ''

export interface Run {
  readonly kernel: Kernel
  /** Test files, from the root of the repo. */
  readonly files: readonly string[]
  readonly pattern?: string | undefined
  readonly timeoutMs: number
  /** How much of it: see test/lab/routine.ts. */
  readonly corpus: 'quick' | 'routine' | 'whole'
  readonly outcome?: (outcome: Outcome) => void
  /** To be told, before the tests, what the kernel has. */
  readonly traits?: (traits: Traits) => void
}

/** 1 means that tests failed, which they have told themselves; otherwise the process had no chance to. */
const ended = `code=0
ended() {
  code=1
  [ "$2" -le 1 ] || printf '{"file":"%s","name":"%s","state":"failed","seconds":0,"words":"ended with code %s"}\\n' "$1" "$1" "$2" >>"$SLUICE_RESULTS"
}`

/** One boot, one process per file. Resolves with the exit code and all outcomes. */
export async function runFiles(run: Run): Promise<{ readonly code: number; readonly outcomes: readonly Outcome[] }> {
  const bundles = await bundleTests(run.files)
  const outcomes: Outcome[] = []
  let rest = ''
  const results = (chunk: Buffer) => {
    const lines = (rest + chunk.toString()).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) {
      const outcome = JSON.parse(line) as Outcome | { readonly traits: Traits }
      if ('traits' in outcome) run.traits?.(outcome.traits)
      else {
        outcomes.push(outcome)
        run.outcome?.(outcome)
      }
    }
  }
  const pattern = run.pattern === undefined ? [] : [run.pattern]
  const quoted = (words: readonly string[]) => words.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(' ')
  const each = run.files.map(
    (file) =>
      `node ${nodeArgs} ${quoted([bundles.runner, file, bundles.of(file), ...pattern])} || ended ${quoted([file])} $?`,
  )
  if (run.traits !== undefined) each.unshift(`node ${bundles.of('test/vm/traits.worker.ts')}`)
  try {
    const code = await boot({
      kernel: run.kernel,
      command: ['bash', '-c', [loadModules, ended, ...each, 'exit $code'].join('\n')],
      timeoutMs: run.timeoutMs,
      environment: { ...bundles.environment, SLUICE_VM_NODE: nodeArgs, SLUICE_CORPUS: run.corpus },
      results,
      memoryMb: 3072,
    })
    return { code, outcomes }
  } finally {
    bundles.remove()
  }
}

/** The same words as vitest's at its end. */
export function summary(outcomes: readonly Outcome[]): string {
  const count = (state: Outcome['state']) => outcomes.filter((one) => one.state === state).length
  const words = (['failed', 'passed', 'skipped'] as const).filter((state) => count(state) > 0)
  return `Tests  ${words.map((state) => `${count(state)} ${state}`).join(' | ')} (${outcomes.length})`
}
