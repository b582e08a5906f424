// A test's own program as one plain file: starting it must not cost the time of a TypeScript loader, a hundred times over.

import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { join, relative } from 'node:path'

export interface Bundle {
  readonly file: string
  remove(): void
}

/** Below node_modules, where native dependencies are found. */
export async function bundleProgram(input: string): Promise<Bundle> {
  const ready = bundledAlready(input)
  if (ready !== undefined) return { file: ready, remove: () => undefined }
  const folder = join(import.meta.dirname, '../../node_modules/.cache', `sluice-test-${process.pid}`)
  mkdirSync(folder, { recursive: true })
  const file = join(folder, `${input.replace(/.*\/|\.ts$/g, '')}.mjs`)
  const { rolldown } = await import('rolldown')
  const bundle = await rolldown({ input, platform: 'node', external: ['koffi'], logLevel: 'silent' })
  await bundle.write({ file, format: 'esm', codeSplitting: false })
  await bundle.close()
  return { file, remove: () => rmSync(folder, { recursive: true, force: true }) }
}

/** In a VM all programs were bundled before it was started. */
export function bundledAlready(input: string): string | undefined {
  const folder = process.env.SLUICE_BUNDLES
  const file = folder === undefined ? '' : join(folder, `${bundleName(input)}.mjs`)
  return existsSync(file) ? file : undefined
}

/** `test-lab-engine.worker` for that file of this repo. */
export const bundleName = (input: string): string =>
  relative(join(import.meta.dirname, '../..'), input)
    .replace(/\.ts$/, '')
    .replaceAll('/', '-')
