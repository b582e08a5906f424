// `tsx test/vm/tier.ts ipvs [arguments of vitest]`, or a program in place of a tier: runs it here if this kernel has IPVS, else in a VM, else
// says in one line why not.

import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { bundleProgram } from '../kernel/bundle.ts'
import { type Boot, boot } from './boot.ts'
import { type Kernel, provideKernel } from './kernel.ts'
import { capture, providePackages } from './packages.ts'

/** Loads what the tier needs; a machine that lacks it fails the tests, not this. */
const modules = 'ip_vs nf_conntrack ip_set xt_set dummy'
/** In an emulated CPU compiled code is translated once more: interpreting is quicker. */
const interpreted = ['--no-opt', '--max-lazy', '--no-sparkplug']

export function tierCommand(project: string, args: readonly string[]): readonly string[] {
  const script = `modprobe -aq ${modules}; exec node ${interpreted.join(' ')} "$@"`
  return ['bash', '-c', script, 'tier', 'node_modules/vitest/vitest.mjs', 'run', '--project', project, ...args]
}

/** A program that runs for long is better compiled after all. */
const programCommand = (file: string, args: readonly string[]): readonly string[] => {
  const script = `modprobe -aq ${modules}; exec node --import tsx "$@"`
  return ['bash', '-c', script, 'program', file, ...args]
}

/** With the programs of the tests ready to run: to make them of TypeScript takes long in there. */
export async function bootTier(kernel: Kernel, options: Omit<Boot, 'kernel'>): Promise<number> {
  const bundle = await bundleProgram(join(import.meta.dirname, '../lab/engine.worker.ts'))
  process.env.SLUICE_ENGINE_WORKER = bundle.file
  try {
    return await boot({ kernel, ...options })
  } finally {
    bundle.remove()
  }
}

function hasIpvs(): boolean {
  if (process.getuid?.() !== 0) return false
  const loaded = (name: string) => existsSync(`/sys/module/${name}`) || capture('modprobe', ['-q', name]) !== undefined
  return loaded('ip_vs') && loaded('dummy')
}

async function runTier(project: string, args: readonly string[]): Promise<number> {
  const program = project.endsWith('.ts')
  if (hasIpvs()) {
    const tier = ['node_modules/vitest/vitest.mjs', 'run', '--project', project, ...args]
    const here = program ? ['--import', 'tsx', project, ...args] : tier
    return spawnSync(process.execPath, here, { stdio: 'inherit' }).status ?? 1
  }
  const skip = (why: string) => {
    process.stdout.write(`SKIPPED tier ${project}: ${why}\n`)
    return 0
  }
  const why = providePackages()
  if (why !== undefined) return skip(why)
  try {
    const kernel = provideKernel(process.env.SLUICE_VM_KERNEL ?? 'bookworm')
    const command = program ? programCommand(project, args) : tierCommand(project, args)
    return await bootTier(kernel, { command, timeoutMs: 45 * 60_000 })
  } catch (error) {
    return skip((error as Error).message)
  }
}

if (import.meta.filename === process.argv[1]) {
  const [project = 'ipvs', ...args] = process.argv.slice(2)
  process.exitCode = await runTier(project, args)
}
