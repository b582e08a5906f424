// The commands `npm run package` and `npm run image`.

import { statSync } from 'node:fs'
import { makeDeb } from './deb.ts'
import { makeExecutable } from './executable.ts'
import { makeImages } from './image.ts'
import { architectures } from './inputs.ts'

const what = process.argv[2]
if (what === 'package') {
  for (const architecture of architectures) {
    const executable = await makeExecutable(architecture)
    report(executable)
    report(await makeDeb(architecture, executable))
  }
} else if (what === 'image') {
  // An executable of older sources must not get into an image.
  for (const architecture of architectures) await makeExecutable(architecture)
  for (const path of await makeImages()) report(path)
} else {
  throw new Error('usage: make.ts package | image')
}

function report(path: string): void {
  console.log(`${path} (${(statSync(path).size / 1e6).toFixed(1)} MB)`)
}
