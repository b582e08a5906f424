// Headless Chromium for tests of the dashboard: opens its page, and records what the page must never do.

import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type BrowserContext, chromium, type Page } from 'playwright-core'

const program = '/usr/bin/chromium'

/** Why the tier cannot run here; '' if it can. */
export function whyNot(): string {
  if (!existsSync(program)) return 'there is no Chromium (test/browser/install installs it)'
  return existsSync(join(import.meta.dirname, '../../dist/web/index.html'))
    ? ''
    : 'the page is not built: npm run build'
}

/** Prints the line that says why, once per file. */
export function isSkipped(): boolean {
  const why = whyNot()
  if (why !== '') console.log(`SKIPPED tier browser: ${why}`)
  return why !== ''
}

const flags = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

export interface OpenedPage {
  readonly page: Page
  readonly context: BrowserContext
  /** Errors of scripts, of the console, and of the Content-Security-Policy. There must be none. */
  readonly errors: readonly string[]
  /** Requests to other servers than the dashboard. There must be none. */
  readonly foreign: readonly string[]
  close(): Promise<void>
}

export interface PageLook {
  readonly width?: number
  readonly height?: number
  readonly theme?: 'light' | 'dark'
}

/** Opens the URL in a browser with a profile of its own. */
export async function openPage(
  url: string,
  { width = 1440, height = 900, theme = 'light' }: PageLook = {},
): Promise<OpenedPage> {
  const profile = mkdtempSync(join(tmpdir(), 'sluice-chromium-'))
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: program,
    args: flags,
    viewport: { width, height },
    colorScheme: theme,
    permissions: ['clipboard-read', 'clipboard-write'],
  })
  const errors: string[] = []
  const foreign: string[] = []
  const { origin } = new URL(url)
  context.on('request', (request) => {
    if (new URL(request.url()).origin !== origin) foreign.push(request.url())
  })
  const page = context.pages()[0] ?? (await context.newPage())
  page.on('pageerror', (error) => errors.push(error.message))
  page.on('console', (message) => {
    if (message.type() === 'error') errors.push(message.text())
  })
  await page.goto(url)
  return {
    page,
    context,
    errors,
    foreign,
    async close() {
      await context.close()
      rmSync(profile, { recursive: true, force: true })
    },
  }
}

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

/** Returns the serious and critical findings of axe, one line each; of all its rules, or of these. */
export async function findBarriers(page: Page, rules: readonly string[] = []): Promise<readonly string[]> {
  // The devtools protocol runs scripts that the Content-Security-Policy of the page would refuse.
  await page.evaluate(axeSource)
  const options = rules.length === 0 ? {} : { runOnly: rules }
  const { violations } = await page.evaluate<AxeResult>(`axe.run(${JSON.stringify(options)})`)
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) =>
      nodes.map(({ html, failureSummary }) => `${id}: ${html.slice(0, 160)} ${failureSummary}`),
    )
}

interface AxeResult {
  readonly violations: readonly {
    readonly id: string
    readonly impact: string
    readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[]
  }[]
}
