// Finds the files of the page: below the bundle, or inside the single executable, which carries them as assets.

import { readdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ProxyError } from '../../lib/errors.ts'

export interface PageFile {
  readonly type: string
  readonly body: Buffer
}

interface Assets {
  isSea(): boolean
  getRawAsset(name: string): ArrayBuffer
}

const types: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
}

/** The asset of the single executable that lists the names of the others. */
const listName = 'web/files.json'

/** Returns the files by name: `index.html`, and those that it refers to. Throws a ProxyError if the page was not built. */
export function readPageFiles(): ReadonlyMap<string, PageFile> {
  const assets = findAssets()
  const read = assets === undefined ? readFolder : () => readAssets(assets)
  return new Map([...read()].map(([name, body]) => [name, { type: types[extname(name)] ?? 'text/plain', body }]))
}

function* readAssets(assets: Assets): Iterable<readonly [string, Buffer]> {
  const names = JSON.parse(Buffer.from(assets.getRawAsset(listName)).toString()) as readonly string[]
  for (const name of names) yield [name, Buffer.from(assets.getRawAsset(`web/${name}`))]
}

function* readFolder(): Iterable<readonly [string, Buffer]> {
  const folder = findFolder(dirname(fileURLToPath(import.meta.url)))
  for (const name of readdirSync(folder)) yield [name, readFileSync(join(folder, name))]
}

/** The bundle is in dist and dist/parts; the sources are three folders below the root. */
function findFolder(here: string): string {
  for (const path of ['web', '../web', '../../../dist/web']) {
    const folder = join(here, path)
    try {
      if (readdirSync(folder).includes('index.html')) return folder
    } catch {}
  }
  throw new ProxyError('usage', 'the files of the page are missing: run npm run build')
}

/** Undefined unless this process is a single executable. Node before 20.12 has no such module. */
function findAssets(): Assets | undefined {
  try {
    const sea = createRequire(import.meta.url)('node:sea') as Assets
    return sea.isSea() ? sea : undefined
  } catch {
    return undefined
  }
}
