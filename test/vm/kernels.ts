// `npm run test:kernels [-- --kernels bullseye,trixie --tiers ipvs]`: runs kernel tiers on Debian's kernels and writes docs/kernels.md.
//
// Takes hours without KVM. What a kernel lacks shows as failed tests, by name, below the table.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { provideKernel } from './kernel.ts'
import { providePackages } from './packages.ts'
import { bootTier, tierCommand } from './tier.ts'

/** 5.10, 6.1, 6.12 and the newest that a suite for users has. */
const suites = ['bullseye', 'bookworm', 'trixie', 'trixie-backports']
const tiers: Readonly<Record<string, readonly string[]>> = {
  nftables: ['kernel', 'test/kernel/nftables.test.ts'],
  iptables: ['kernel', 'test/kernel/iptables.test.ts'],
  ipvs: ['ipvs', 'test/ipvs'],
}
const file = join(import.meta.dirname, '../../docs/kernels.md')
const hourMs = 3_600_000

interface Result {
  readonly kernel: string
  readonly tier: string
  readonly passed: number
  readonly failed: readonly string[]
  readonly minutes: number
}

async function runTier(spec: string, tier: string): Promise<Result> {
  const kernel = provideKernel(spec)
  const [project = '', ...files] = tiers[tier] ?? []
  const chunks: Buffer[] = []
  const begun = performance.now()
  await bootTier(kernel, {
    command: tierCommand(project, [...files, '--reporter=json']),
    timeoutMs: 4 * hourMs,
    out: (chunk) => chunks.push(chunk),
  })
  const minutes = Math.ceil((performance.now() - begun) / 60_000)
  const text = Buffer.concat(chunks).toString()
  const json = /^\{.*"testResults".*$/m.exec(text)?.[0]
  if (json === undefined) return { kernel: kernel.release, tier, passed: 0, failed: ['the tier did not end'], minutes }
  const report = JSON.parse(json) as { testResults: { assertionResults: { status: string; fullName: string }[] }[] }
  const tests = report.testResults.flatMap(({ assertionResults }) => assertionResults)
  return {
    kernel: kernel.release,
    tier,
    passed: tests.filter(({ status }) => status === 'passed').length,
    failed: tests.filter(({ status }) => status === 'failed').map(({ fullName }) => fullName),
    minutes,
  }
}

function write(results: readonly Result[]): void {
  const names = Object.keys(tiers)
  const kernels = [...new Set(results.map(({ kernel }) => kernel))]
  const cell = (kernel: string, tier: string) => {
    const result = results.find((one) => one.kernel === kernel && one.tier === tier)
    if (result === undefined) return 'not run'
    return `${result.passed} passed${result.failed.length > 0 ? `, **${result.failed.length} failed**` : ''}`
  }
  const rows = kernels.map((kernel) => `| ${kernel} | ${names.map((tier) => cell(kernel, tier)).join(' | ')} |`)
  const failures = results.filter(({ failed }) => failed.length > 0)
  const lists = failures.map(
    ({ kernel, tier, failed }) => `### ${kernel}, ${tier}\n\n${failed.map((name) => `* ${name}`).join('\n')}\n`,
  )
  const mark = '<!-- results -->'
  const head = readFileSync(file, 'utf8').split(mark)[0] as string
  const table = [`| kernel | ${names.join(' | ')} |`, `|---|${names.map(() => '---').join('|')}|`, ...rows].join('\n')
  writeFileSync(
    file,
    `${head}${mark}\n\n${table}\n${lists.length > 0 ? `\n## What failed\n\n${lists.join('\n')}` : ''}`,
  )
}

const { values } = parseArgs({
  options: {
    kernels: { type: 'string', default: suites.join(',') },
    tiers: { type: 'string', default: Object.keys(tiers).join(',') },
  },
})
const why = providePackages()
if (why !== undefined) process.stdout.write(`SKIPPED tier kernels: ${why}\n`)
else {
  const results: Result[] = []
  for (const spec of values.kernels.split(',')) {
    for (const tier of values.tiers.split(',')) {
      const result = await runTier(spec, tier)
      results.push(result)
      const { kernel, passed, failed, minutes } = result
      process.stdout.write(`${kernel} ${tier}: ${passed} passed, ${failed.length} failed, ${minutes} min\n`)
      write(results)
    }
  }
}
