// Lists the test files that run under other kernels, by tier, and runs several of them in one VM.

import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { boot } from './boot.ts'
import { bundleTests } from './bundle-tests.ts'
import type { KernelFeatures } from './kernel-features.worker.ts'
import type { Kernel } from './provide-kernel.ts'
import type { Outcome } from './runner.worker.ts'

const inKernel = (...names: string[]) => names.map((name) => `test/kernel/${name}.test.ts`)

/** The corpus is the last file, because it takes longest. */
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

/** Files that show what works under a kernel. Loops of kills, large tables and privileges test the proxy rather than the kernel. */
export const quickFiles = (tier: string): readonly string[] =>
  (tiers[tier] ?? []).filter(
    (file) => !/(crash|limits|drift|life|lifecycle|takeover|legacy|privilege)\.test\.ts$/.test(file),
  )

/** The suite of each kernel version. Other names are a suite, or suite:package. */
const versions: Readonly<Record<string, string>> = {
  '5.10': 'bullseye',
  '6.1': 'bookworm',
  '6.12': 'trixie',
  newest: 'trixie-backports',
}
export const kernelNames = Object.keys(versions)
export const suiteOf = (name: string): string => versions[name] ?? name

/** Loads the modules that tests need. If one is missing, tests fail, not this command. */
export const loadModules = 'modprobe -aq ip_vs nf_conntrack nf_conntrack_netlink ip_set xt_set dummy nf_tables'
/** Options for Node. Its compiler pays off even in an emulated CPU, where the compiled code is translated once more. */
const nodeArgs = process.env.SLUICE_VM_NODE ?? ''

export interface TierRun {
  readonly kernel: Kernel
  /** Test files, from the root of the repo. */
  readonly files: readonly string[]
  readonly pattern?: string | undefined
  readonly timeoutMs: number
  /** Which scenarios are played: see test/lab/corpus-selection.ts. */
  readonly corpus: 'quick' | 'routine' | 'whole'
  readonly onOutcome?: (outcome: Outcome) => void
  /** Called before the tests with the features of the kernel. */
  readonly onFeatures?: (features: KernelFeatures) => void
}

/** Exit code 1 means that tests failed and reported it. With a higher code the process could not report, so the shell does. */
const ended = `code=0
ended() {
  code=1
  [ "$2" -le 1 ] || printf '{"file":"%s","name":"%s","state":"failed","seconds":0,"reason":"ended with code %s"}\\n' "$1" "$1" "$2" >>"$SLUICE_RESULTS"
}`

/** Boots once and runs one process per file. Resolves with the exit code and all outcomes. */
export async function runFiles(
  run: TierRun,
): Promise<{ readonly code: number; readonly outcomes: readonly Outcome[] }> {
  const bundles = await bundleTests(run.files)
  const outcomes: Outcome[] = []
  let rest = ''
  const results = (chunk: Buffer) => {
    const lines = (rest + chunk.toString()).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) {
      const outcome = JSON.parse(line) as Outcome | { readonly features: KernelFeatures }
      if ('features' in outcome) run.onFeatures?.(outcome.features)
      else {
        outcomes.push(outcome)
        run.onOutcome?.(outcome)
      }
    }
  }
  const pattern = run.pattern === undefined ? [] : [run.pattern]
  const quoted = (words: readonly string[]) => words.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(' ')
  const each = run.files.map(
    (file) =>
      `node ${nodeArgs} ${quoted([bundles.runner, file, bundles.of(file), ...pattern])} || ended ${quoted([file])} $?`,
  )
  if (run.onFeatures !== undefined) each.unshift(`node ${bundles.of('test/vm/kernel-features.worker.ts')}`)
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

/** Composes the line that vitest prints at its end. */
export function summarise(outcomes: readonly Outcome[]): string {
  const count = (state: Outcome['state']) => outcomes.filter((one) => one.state === state).length
  const words = (['failed', 'passed', 'skipped'] as const).filter((state) => count(state) > 0)
  return `Tests  ${words.map((state) => `${count(state)} ${state}`).join(' | ')} (${outcomes.length})`
}
