// Builds the page of the dashboard: one script, one style sheet, an icon and the document that names them. Each name has a hash of the
// content, so that a browser never mixes two versions.

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import type { Plugin, RolldownOptions } from 'rolldown'

const here = import.meta.dirname
const require = createRequire(import.meta.url)

/** The style sheets in their order. */
const sheets = ['tokens.css', 'layout.css', 'parts.css', 'pages.css']

export const pageBuild = (folder: string): RolldownOptions => ({
  input: join(here, 'main.tsx'),
  platform: 'browser',
  plugins: [emitDocument()],
  output: { dir: folder, format: 'esm', minify: true, entryFileNames: 'app-[hash].js', codeSplitting: false },
})

function emitDocument(): Plugin {
  return {
    name: 'document',
    generateBundle(_, bundle) {
      const script = Object.values(bundle).find((output) => output.type === 'chunk' && output.isEntry)?.fileName ?? ''
      const styles = [
        readFileSync(require.resolve('uplot/dist/uPlot.min.css'), 'utf8'),
        ...sheets.map((name) => readFileSync(join(here, 'styles', name), 'utf8')),
      ].join('\n')
      const icon = readFileSync(join(here, 'icon.svg'), 'utf8')
      const names = { script, style: hashed('style', 'css', styles), icon: hashed('icon', 'svg', icon) }
      this.emitFile({ type: 'asset', fileName: names.style, source: styles })
      this.emitFile({ type: 'asset', fileName: names.icon, source: icon })
      const document = readFileSync(join(here, 'index.html'), 'utf8').replace(
        /\{(script|style|icon)\}/g,
        (_, name: keyof typeof names) => names[name],
      )
      this.emitFile({ type: 'asset', fileName: 'index.html', source: document })
    },
  }
}

const hashed = (name: string, extension: string, content: string): string =>
  `${name}-${createHash('sha256').update(content).digest('base64url').slice(0, 8)}.${extension}`
