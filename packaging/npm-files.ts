// Writes what the npm package contains beside the bundle, before `npm pack`: man pages, which npm installs, and completion scripts.

import { execFileSync } from 'node:child_process'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { manPages } from './man-pages.ts'

const root = join(import.meta.dirname, '..')

const files: (readonly [path: string, text: string | Buffer])[] = []
for (const [name, text] of await manPages()) files.push([join('dist/man', name), text])
for (const [shell, name] of Object.entries({ bash: 'sluice', zsh: '_sluice', fish: 'sluice.fish' })) {
  const script = execFileSync(process.execPath, [join(root, 'bin/sluice'), 'completion', shell])
  files.push([join('dist/completion', shell, name), script])
}
for (const folder of ['dist/man', 'dist/completion']) rmSync(join(root, folder), { recursive: true, force: true })
for (const [path, text] of files) {
  mkdirSync(join(root, path, '..'), { recursive: true })
  writeFileSync(join(root, path), text)
}
