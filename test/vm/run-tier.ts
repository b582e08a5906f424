// Runs tests, or a program, under another kernel. The ipvs tier runs without a VM if this kernel has IPVS.
//
// `tsx test/vm/run-tier.ts TIER|FILE… [--kernel 6.1] [--test pattern] [--whole] [--minutes 45]`, or `run-tier.ts PROGRAM.ts [arguments]`.
// Where the tier cannot run, one line says why.

import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { boot } from './boot.ts'
import { capture, providePackages } from './host-packages.ts'
import { provideKernel } from './provide-kernel.ts'
import { loadModules, runFiles, suiteOf, summarise, tiers } from './tiers.ts'

const defaultKernel = process.env.SLUICE_VM_KERNEL ?? '6.1'

function hasIpvs(): boolean {
  if (process.getuid?.() !== 0) return false
  const loaded = (name: string) => existsSync(`/sys/module/${name}`) || capture('modprobe', ['-q', name]) !== undefined
  return loaded('ip_vs') && loaded('dummy')
}

const runHere = (...args: string[]): number => spawnSync(process.execPath, args, { stdio: 'inherit' }).status ?? 1

/** Prints the reason if the VM cannot run, else returns what `work` returns. */
async function unlessImpossible(name: string, work: () => Promise<number>): Promise<number> {
  let why = providePackages()
  try {
    if (why === undefined) return await work()
  } catch (error) {
    why = (error as Error).message
  }
  process.stdout.write(`SKIPPED tier ${name}: ${why}\n`)
  return 0
}

function runProgram(file: string, args: readonly string[]): Promise<number> | number {
  if (hasIpvs()) return runHere('--import', 'tsx', file, ...args)
  // A program runs for long, so it is worth compiling in the VM.
  const command = ['bash', '-c', `${loadModules}; exec node --import tsx "$@"`, 'program', file, ...args]
  return unlessImpossible(file, () =>
    boot({ kernel: provideKernel(suiteOf(defaultKernel)), command, timeoutMs: 20 * 60_000 }),
  )
}

function runTier(args: readonly string[]): Promise<number> | number {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      kernel: { type: 'string' },
      test: { type: 'string', short: 't' },
      whole: { type: 'boolean', default: false },
      minutes: { type: 'string', default: '45' },
    },
  })
  const { kernel, test: pattern, whole, minutes } = values
  const names = positionals.length === 0 ? ['ipvs'] : positionals
  const files = names.flatMap((name) => tiers[name] ?? [name])
  if (kernel === undefined && names.every((name) => name.includes('ipvs')) && hasIpvs()) {
    const only = pattern === undefined ? [] : ['-t', pattern]
    return runHere('node_modules/vitest/vitest.mjs', 'run', '--project', 'ipvs', ...files, ...only)
  }
  return unlessImpossible(names.join(' '), async () => {
    const chosen = provideKernel(suiteOf(kernel ?? defaultKernel))
    process.stdout.write(`${files.length} test files under Linux ${chosen.release}\n`)
    const timeoutMs = Number(minutes) * 60_000
    const { code, outcomes } = await runFiles({
      kernel: chosen,
      files,
      pattern,
      corpus: whole ? 'whole' : 'routine',
      timeoutMs,
    })
    for (const { file, name, reason } of outcomes.filter(({ state }) => state === 'failed')) {
      process.stdout.write(`FAILED ${file} ${name}: ${reason}\n`)
    }
    process.stdout.write(`${summarise(outcomes)}\n`)
    return code
  })
}

const [first = 'ipvs', ...rest] = process.argv.slice(2)
const program = first.endsWith('.ts') && !first.endsWith('.test.ts')
process.exitCode = await (program ? runProgram(first, rest) : runTier(process.argv.slice(2)))
