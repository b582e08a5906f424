// A test's own program as one plain file: starting it must not cost the time of a TypeScript loader, a hundred times over.

import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { rolldown } from 'rolldown'

export interface Bundle {
  readonly file: string
  remove(): void
}

/** Below node_modules, where native dependencies are found. */
export async function bundleProgram(input: string): Promise<Bundle> {
  const folder = join(import.meta.dirname, '../../node_modules/.cache', `sluice-test-${process.pid}`)
  mkdirSync(folder, { recursive: true })
  const file = join(folder, `${input.replace(/.*\/|\.ts$/g, '')}.mjs`)
  const bundle = await rolldown({ input, platform: 'node', external: ['koffi'], logLevel: 'silent' })
  await bundle.write({ file, format: 'esm', codeSplitting: false })
  await bundle.close()
  return { file, remove: () => rmSync(folder, { recursive: true, force: true }) }
}
