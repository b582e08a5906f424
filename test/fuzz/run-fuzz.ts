// Runs fuzz targets under Jazzer.js, which follows coverage: `npm run fuzz -- [SECONDS] [TARGET...]`. Without Jazzer.js, changes are random.
//
// Jazzer.js 4 needs glibc 2.38 (Debian 13, Ubuntu 24.04). Inputs that reached new code stay in node_modules/.cache/sluice-fuzz for the next
// run; an input that reveals a bug is written there too, and belongs into test/fuzz/found/TARGET once the bug is mended.

import { spawnSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { rolldown } from 'rolldown'
import { readSeeds } from './seeds.ts'
import { fuzzTargets } from './targets.ts'

const folder = join(import.meta.dirname, '../../node_modules/.cache/sluice-fuzz')
const require = createRequire(import.meta.url)

/** Returns the path of Jazzer's program, or undefined if its native part does not load here. */
function findJazzer(): string | undefined {
  try {
    const program = require.resolve('@jazzer.js/core/dist/cli.js')
    return spawnSync(process.execPath, [program, '--help'], { stdio: 'ignore' }).status === 0 ? program : undefined
  } catch {
    return undefined
  }
}

/** Jazzer instruments only CommonJS. */
async function bundleTargets(): Promise<string> {
  const file = join(folder, 'targets.cjs')
  const input = join(import.meta.dirname, 'targets.ts')
  const bundle = await rolldown({ input, platform: 'node', external: ['koffi'], logLevel: 'silent' })
  await bundle.write({ file, format: 'cjs', codeSplitting: false })
  await bundle.close()
  return file
}

function runJazzer(jazzer: string, bundle: string, target: string, seconds: number): boolean {
  const corpus = join(folder, target)
  mkdirSync(corpus, { recursive: true })
  for (const [i, seed] of readSeeds(target).entries()) writeFileSync(join(corpus, `seed-${i}`), seed)
  const entry = join(folder, `${target}.cjs`)
  writeFileSync(entry, `exports.fuzz = require(${JSON.stringify(bundle)}).fuzzTargets[${JSON.stringify(target)}]\n`)
  const limits = [`-max_total_time=${seconds}`, '-timeout=10', '-rss_limit_mb=2048', '-max_len=65536']
  const output = [`-artifact_prefix=${corpus}-`, '-print_final_stats=1']
  const args = [jazzer, entry, corpus, '--sync', '-i', 'sluice-fuzz', '-e', 'nothing', '--', ...limits, ...output]
  return spawnSync(process.execPath, args, { stdio: 'inherit' }).status === 0
}

function runRandom(seconds: number): boolean {
  console.log('Jazzer.js does not load here (it needs glibc 2.38): changes are random and do not follow coverage')
  const env = { ...process.env, FUZZ_SECONDS: String(seconds) }
  const args = ['vitest', 'run', '--project', 'unit', join(import.meta.dirname, 'decoders.test.ts')]
  return spawnSync('npx', args, { stdio: 'inherit', env }).status === 0
}

async function runFuzz([secondsText = '60', ...names]: readonly string[]): Promise<void> {
  mkdirSync(folder, { recursive: true })
  const seconds = Number(secondsText)
  const targets = names.length === 0 ? Object.keys(fuzzTargets) : names
  const jazzer = findJazzer()
  const bundle = jazzer === undefined ? '' : await bundleTargets()
  const failed =
    jazzer === undefined
      ? [runRandom(seconds)].filter((passed) => !passed)
      : targets.filter((target) => !runJazzer(jazzer, bundle, target, seconds))
  console.log(failed.length === 0 ? 'No target failed' : `Failed: ${failed.join(', ')}`)
  process.exitCode = failed.length === 0 ? 0 : 1
}

await runFuzz(process.argv.slice(2))
