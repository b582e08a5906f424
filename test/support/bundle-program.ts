// Bundles a program of a test into one file: tests start it a hundred times, and a TypeScript loader would take too long.

import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { join, relative } from 'node:path'

export interface Bundle {
  readonly file: string
  remove(): void
}

/** The folder of bundles: below node_modules, where Node finds native dependencies. */
export async function bundleProgram(input: string): Promise<Bundle> {
  const ready = bundledAlready(input)
  if (ready !== undefined) return { file: ready, remove: () => undefined }
  const folder = join(import.meta.dirname, '../../node_modules/.cache', `sluice-test-${process.pid}`)
  mkdirSync(folder, { recursive: true })
  const file = join(folder, `${input.replace(/.*\/|\.ts$/g, '')}.mjs`)
  const { rolldown } = await import('rolldown')
  const bundle = await rolldown({ input, platform: 'node', external: ['koffi', 'rolldown'], logLevel: 'silent' })
  await bundle.write({ file, format: 'esm', codeSplitting: false })
  await bundle.close()
  return { file, remove: () => rmSync(folder, { recursive: true, force: true }) }
}

/** In a VM, all programs are bundled before the VM starts. */
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
