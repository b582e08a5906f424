// Only one file asks which system this is: everything that differs is behind the interface `Platform`.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'

const root = join(import.meta.dirname, '..', '..', '..', 'src')

it('lets only sys/platform/platform.ts ask which system this is', () => {
  const asking = readdirSync(root, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.ts'))
    .filter((path) => /process\.platform|from 'node:os'.*\bplatform\b/.test(readFileSync(join(root, path), 'utf8')))
  expect(asking).toEqual(['sys/platform/platform.ts'])
})
