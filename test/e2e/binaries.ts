// Finds the programs of the real control plane in the cache that build-cluster fills, or says why the tier cannot run.

import { spawn } from 'node:child_process'
import { accessSync, constants } from 'node:fs'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const BUILDER = fileURLToPath(new URL('build-cluster', import.meta.url))
const BUILD_LIMIT_MS = 30 * 60_000
/** Lines that are shown while it runs. The last of the others is the reason for a failure, which the caller shows. */
const PROGRESS = /^build-cluster: (building|built|waiting)/

export type Program = 'etcd' | 'kube-apiserver' | 'kubectl' | 'kube-proxy'

/** `directory` holds the programs, or `missing` says why there are none. */
export type Binaries = { readonly directory: string } | { readonly missing: string }

/**
 * Builds the programs that are not in the cache, which takes minutes the first time. SLUICE_E2E_BUILD=never forbids that, for test
 * runs with a time budget; then the cache must have them.
 */
export async function findBinaries(programs: readonly Program[]): Promise<Binaries> {
  const directory = (await runBuilder(['--where'])).stdout.trim()
  const absent = programs.filter((name) => !executable(join(directory, name)))
  if (absent.length > 0) {
    if (process.env.SLUICE_E2E_BUILD === 'never')
      return { missing: `${absent.join(', ')} not built, building forbidden` }
    const built = await runBuilder(programs)
    if (built.code !== 0) return { missing: lastLine(built.stderr) }
  }
  if (!onPath('openssl')) return { missing: 'no openssl to issue certificates with' }
  return { directory }
}

function runBuilder(args: readonly string[]): Promise<{ code: number | null; stdout: string; stderr: string }> {
  return new Promise((resolve, reject) => {
    const child = spawn(BUILDER, args, { stdio: ['ignore', 'pipe', 'pipe'], timeout: BUILD_LIMIT_MS })
    let stdout = ''
    let stderr = ''
    child.stdout.on('data', (chunk) => {
      stdout += chunk
    })
    child.stderr.on('data', (chunk) => {
      stderr += chunk
      if (PROGRESS.test(chunk)) process.stderr.write(chunk)
    })
    child.on('error', reject)
    child.on('close', (code) => resolve({ code, stdout, stderr }))
  })
}

function lastLine(text: string): string {
  const line = text
    .trim()
    .split('\n')
    .at(-1)
    ?.replace(/^build-cluster: /, '')
  return line === undefined || line === '' ? 'build-cluster failed and printed no reason' : line
}

export function onPath(program: string): boolean {
  return (process.env.PATH ?? '').split(delimiter).some((directory) => executable(join(directory, program)))
}

function executable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}
