// Bundles test files and their programs into plain JavaScript on the host, because compiling TypeScript takes long in an emulated CPU.

import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { rolldown } from 'rolldown'
import { loadScenarios } from '../scenarios/load.ts'
import { bundleName } from '../support/bundle-program.ts'

const root = join(import.meta.dirname, '../..')

export interface Bundles {
  readonly runner: string
  /** The bundle of a source file, by its path from the root of the repo. */
  readonly of: (source: string) => string
  /** Environment variables that tell the programs in the VM where the bundles are. */
  readonly environment: Readonly<Record<string, string>>
  remove(): void
}

/** `sources`: test files, by their paths from the root of the repo. The programs that tests start are bundled, too. */
export async function bundleTests(sources: readonly string[]): Promise<Bundles> {
  const folder = join(root, 'node_modules/.cache', `sluice-vm-${process.pid}`)
  mkdirSync(folder, { recursive: true })
  const remove = () => rmSync(folder, { recursive: true, force: true })
  process.once('exit', remove)
  const programs = ['test/lab', 'test/commands', 'test/kernel', 'test/ipvs', 'test/privilege', 'test/vm'].flatMap(
    (one) =>
      readdirSync(join(root, one))
        .filter((name) => name.endsWith('.worker.ts'))
        .map((name) => `${one}/${name}`),
  )
  const input = Object.fromEntries(
    [...sources, ...programs].map((source) => [bundleName(join(root, source)), join(root, source)]),
  )
  const bundle = await rolldown({
    input,
    platform: 'node',
    external: ['koffi', 'rolldown'],
    logLevel: 'silent',
    plugins: [
      places,
      { name: 'vitest', resolveId: (id) => (id === 'vitest' ? join(import.meta.dirname, 'vitest-in-vm.ts') : null) },
    ],
  })
  await bundle.write({ dir: folder, format: 'esm', entryFileNames: '[name].mjs', chunkFileNames: 'chunk-[hash].mjs' })
  await bundle.close()
  // Parsing the YAML takes twenty seconds in the VM.
  writeFileSync(join(folder, 'scenarios.json'), JSON.stringify(loadScenarios()))
  const of = (source: string) => join(folder, `${bundleName(join(root, source))}.mjs`)
  return {
    runner: of('test/vm/runner.worker.ts'),
    of,
    environment: {
      SLUICE_BUNDLES: folder,
      SLUICE_ENGINE_WORKER: of('test/lab/engine.worker.ts'),
      SLUICE_SCENARIOS: join(folder, 'scenarios.json'),
    },
    remove,
  }
}

/** A bundle is in another folder, but the sources mean the folder that they were written in. */
const places = {
  name: 'places',
  transform(code: string, id: string) {
    if (!id.startsWith(root) || relative(root, id).startsWith('node_modules') || !code.includes('import.meta'))
      return null
    // It finds the native package beside the bundle: a user without privileges may not be able to enter the folder of the sources.
    if (relative(root, id) === 'src/sys/native-addon.ts') return null
    return code
      .replaceAll('import.meta.dirname', JSON.stringify(dirname(id)))
      .replaceAll('import.meta.filename', JSON.stringify(id))
      .replaceAll('import.meta.url', JSON.stringify(`file://${id}`))
  },
}
