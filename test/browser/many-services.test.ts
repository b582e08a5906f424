// The dashboard in a real browser with 10,000 services and hostile names; who may open it; and a proxy that ends and comes back.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { until } from '../support/until.ts'
import { findBarriers, isSkipped, type OpenedPage, openPage } from './chromium.ts'
import { type ManyServices, startManyServices } from './many-services.ts'

const hostile = [
  '<script>window.hacked=1</script>',
  '"><img src=x onerror=window.hacked=1>',
  "'-alert(1)-'",
  'javascript:alert(1)',
  'evil\u202egnp.exe',
  'zero\u200bwidth\u2066isolate',
]

describe.skipIf(isSkipped())('the dashboard with 10,000 services', () => {
  let folder = ''
  let proxy: ManyServices
  let one: OpenedPage

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sluice-browser-'))
    proxy = await startManyServices(folder, 10_000, hostile)
    one = await openPage(proxy.url)
  })

  afterAll(async () => {
    await one?.close()
    await proxy?.close()
    rmSync(folder, { recursive: true, force: true })
  })

  const show = (hash: string) => one.page.evaluate(`location.assign(${JSON.stringify(hash)})`)

  it('has few rows in the document, whatever the number of services, and finds and sorts all of them', async () => {
    const { page } = one
    await show('#/services')
    await page.getByText('10,006 in total').waitFor()
    const rows = page.locator('[role=row]')
    expect(await rows.count()).toBeLessThan(80)
    expect(await page.getByRole('table').getAttribute('aria-rowcount')).toBe('10007')
    await page.getByLabel('Search services').fill('service-0777')
    await page.getByText('10 of 10,006').waitFor()
    expect(await rows.count()).toBe(11)
    await page.getByRole('columnheader').first().getByRole('button').click()
    await page.locator('[aria-sort=descending]').waitFor()
    expect(await rows.nth(1).innerText()).toContain('service-07779')
    expect(page.url()).toContain('q=service-0777')
    await page.getByLabel('Search services').fill('')
    expect(await findBarriers(page)).toEqual([])
  })

  it('leads through the list by keys alone', async () => {
    const { page } = one
    await show('#/')
    await show('#/services')
    await page.getByText('10,006 in total').waitFor()
    await page.keyboard.press('/')
    await page.keyboard.type('namespace-7/')
    await page.getByText('100 of 10,006').waitFor()
    const focused = () => page.evaluate<string>("document.activeElement?.textContent ?? ''")
    const tabUntil = async (isThere: () => Promise<boolean>) => {
      for (let i = 0; i < 20 && !(await isThere()); i++) await page.keyboard.press('Tab')
    }
    await tabUntil(async () => (await focused()).startsWith('namespace-7/'))
    expect(await focused()).toBe('namespace-7/service-00007')
    await page.keyboard.press('ArrowDown')
    await until('the second row has the focus', async () => (await focused()) === 'namespace-7/service-00107')
    await page.keyboard.press('End')
    await until('the last row has the focus', async () => (await focused()) === 'namespace-7/service-09907')
    await page.keyboard.press('Home')
    await until('the first row has the focus', async () => (await focused()) === 'namespace-7/service-00007')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'namespace-7/service-00007', level: 1 }).waitFor()
    await page.getByText('this node (here)').waitFor()
  })

  it('shows hostile names as text, and what is hidden in them', async () => {
    const { page } = one
    await show('#/services')
    await page.getByLabel('Search services').fill('hostile/')
    await page.getByText(`${hostile.length} of 10,006`).waitFor()
    const text = await page.getByRole('table').innerText()
    for (const name of hostile.slice(0, 4)) expect(text).toContain(name)
    expect(text).toContain('evil⟨U+202E⟩gnp.exe')
    expect(text).toContain('zero⟨U+200B⟩width⟨U+2066⟩isolate')
    for (const word of ['<script>', 'onerror', 'U+202E']) {
      await page.getByLabel('Search services').fill(`hostile/ ${word}`)
      await page.getByRole('table').getByRole('link').first().click()
      await page.getByRole('heading', { level: 1 }).filter({ hasText: word }).waitFor()
      await page.getByRole('img', { name: /^A packet from/ }).waitFor()
      await page.goBack()
      await page.getByLabel('Search services').waitFor()
    }
    expect(await page.evaluate('globalThis.hacked')).toBeUndefined()
    expect(await page.locator('main img, main script, main iframe').count()).toBe(0)
  })

  it('plots the last hour', async () => {
    const { page } = one
    await show('#/')
    await page.getByRole('img', { name: /^Memory over the last hour: now 18\d/ }).waitFor()
    await page.getByRole('img', { name: /^Connections per second over the last hour/ }).waitFor()
    expect(await page.locator('canvas').count()).toBeGreaterThanOrEqual(12)
    expect(await findBarriers(page)).toEqual([])
  })

  it('says that the proxy is gone, keeps what it showed, and connects again', async () => {
    const { page } = one
    await proxy.stopProxy()
    await page.getByRole('alert').filter({ hasText: 'The proxy does not answer' }).waitFor()
    expect(await findBarriers(page)).toEqual([])
    await page.getByRole('heading', { name: 'Overview' }).waitFor()
    await proxy.startProxy()
    await page.getByRole('alert').waitFor({ state: 'detached' })
    await page.locator('.link-live').waitFor()
  })

  it('asks only its own server and breaks no rule of its Content-Security-Policy', () => {
    expect(one.foreign).toEqual([])
    // The browser itself reports answers of the time in which the proxy was gone.
    expect(one.errors.filter((error) => !/status of 502/.test(error))).toEqual([])
  })

  it('gives the browser a cookie that scripts cannot read and other sites do not send', async () => {
    const [cookie] = await one.context.cookies()
    expect(cookie).toMatchObject({ httpOnly: true, sameSite: 'Strict' })
    expect(await one.page.evaluate('document.cookie')).toBe('')
    expect(one.page.url()).not.toContain('token')
  })

  it('answers nobody without the cookie, another Host or another Origin', async () => {
    const { origin } = new URL(proxy.url)
    const [cookie] = await one.context.cookies()
    const headers = { cookie: `${cookie?.name}=${cookie?.value}` }
    const status = async (path: string, init: RequestInit = {}) =>
      (await fetch(`${origin}${path}`, { redirect: 'manual', ...init })).status
    expect(await status('/api/services')).toBe(401)
    expect(await status('/')).toBe(401)
    expect(await status('/?token=guess')).toBe(401)
    expect(await status('/%')).toBe(400)
    expect(await status('//')).toBe(401)
    expect(await status('/api/about', { headers })).toBe(200)
    expect(await status('/api/about', { headers: { ...headers, origin: 'http://evil.example' } })).toBe(403)
    expect(await status('/api/about', { headers, method: 'POST' })).toBe(405)
    const { request } = await import('node:http')
    const rebound = await new Promise<number | undefined>((resolve, reject) => {
      const sent = request(`${origin}/api/about`, { headers: { ...headers, host: 'evil.example' } }, (answer) =>
        resolve(answer.resume().statusCode),
      )
      sent.on('error', reject)
      sent.end()
    })
    expect(rebound).toBe(421)
  })

  it('refuses a page of another origin in the same browser', async () => {
    const { createServer } = await import('node:http')
    const other = createServer((_, response) => response.setHeader('content-type', 'text/html').end('<h1>other</h1>'))
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve))
    const page = await one.context.newPage()
    try {
      const { port } = other.address() as { port: number }
      await page.goto(`http://localhost:${port}/`)
      const { origin } = new URL(proxy.url)
      const outcome = await page.evaluate(
        (url) =>
          fetch(url, { credentials: 'include' }).then(
            (answer) => answer.text(),
            () => 'refused',
          ),
        `${origin}/api/about`,
      )
      expect(outcome).toBe('refused')
      await page.evaluate(
        `document.body.append(Object.assign(document.createElement('iframe'), { src: '${origin}/' }))`,
      )
      await page.waitForTimeout(300)
      const texts = await Promise.all(
        page.frames().map((frame) => frame.evaluate<string>("document.body?.innerText ?? ''").catch(() => '')),
      )
      expect(texts.join(' ')).not.toContain('Overview')
    } finally {
      await page.close()
      other.close()
    }
  })
})
