// The dashboard of `sluice up --demo` in a real browser: every page, in both themes, on a screen and on a phone.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { until } from '../support/until.ts'
import { findBarriers, isSkipped, type OpenedPage, openPage } from './chromium.ts'

const root = join(import.meta.dirname, '../..')
const isRoot = process.getuid?.() === 0
if (!isRoot) console.log('SKIPPED demo of tier browser: network namespaces need root')

/** Ends with a screenshot of each page if this is set, to look at. */
const shots = process.env.SLUICE_SHOTS ?? ''

describe.skipIf(isSkipped() || !isRoot)('the dashboard of the demo', () => {
  let demo: ChildProcess
  let url = ''
  let output = ''
  const opened: OpenedPage[] = []

  beforeAll(async () => {
    demo = spawn(join(root, 'bin/sluice'), ['up', '--demo', '--scale', '2'], { stdio: ['ignore', 'pipe', 'pipe'] })
    for (const stream of [demo.stdout, demo.stderr]) stream?.on('data', (chunk) => (output += chunk))
    url = await until(`the demo prints its URL`, () => {
      if (demo.exitCode !== null) throw new Error(output)
      return /Dashboard: (http:\S+)/.exec(output)?.[1]
    })
    await until('the demo has printed all', () => output.includes('Ctrl-C stops the demo'))
  })

  afterAll(async () => {
    for (const one of opened) await one.close()
    if (demo.exitCode !== null) return
    const ended = new Promise((resolve) => demo.once('exit', resolve))
    demo.kill('SIGTERM')
    await ended
  })

  const open = async (look: Parameters<typeof openPage>[1]) => {
    const one = await openPage(url, look)
    opened.push(one)
    return one
  }

  /** The name of a network namespace of this demo, from the commands that it printed. */
  const shell = () => /ip netns exec (\S*shell)/.exec(output)?.[1] as string
  const redis = () => /http:\/\/(10\.103\.[\d.]+:6379)/.exec(output)?.[1] as string
  const connect = () => execFileSync('ip', ['netns', 'exec', shell(), 'curl', '-s', `http://${redis()}/`])

  it('shows the proxy, its services, a path with live traffic, and history, without a barrier in either theme', async () => {
    const { page, errors, foreign } = await open({})
    const light = { page, name: 'light-1440' }
    await page.getByText('Nothing is wrong').waitFor()
    expect(new URL(page.url()).search).toBe('')
    await check(light, 'overview')
    await page.getByRole('link', { name: 'Services', exact: true }).first().click()
    await page.getByRole('link', { name: 'default/nobody' }).waitFor()
    expect(await page.getByRole('row').filter({ hasText: 'default/nobody' }).innerText()).toContain('no endpoints')
    await check(light, 'services')
    for (let i = 0; i < 20; i++) connect()
    await page.getByRole('link', { name: 'work/saythx-redis' }).click()
    await page.getByRole('heading', { name: 'work/saythx-redis', level: 1 }).waitFor()
    const picture = page.getByRole('img', { name: /^A packet from/ })
    await until('the picture shows traffic', async () => /[1-9]\d* connection/.test(await picture.innerHTML()))
    const words = await picture.innerHTML()
    for (const word of ['this node (node1)', 'node2', '50 %', 'masqueraded']) expect(words).toContain(word)
    await check(light, 'service')
    await page.getByRole('link', { name: 'Flows' }).click()
    await page.getByText('Following').waitFor()
    connect()
    await page
      .getByRole('row')
      .filter({ hasText: 'work/saythx-redis' })
      .filter({ hasText: '10.32.0.9' })
      .first()
      .waitFor()
    await check(light, 'flows')
    await page.getByRole('link', { name: 'History' }).click()
    await page.getByText('start:').first().waitFor()
    await check(light, 'history')
    await page.getByRole('button', { name: /^Colours/ }).click()
    await page.getByRole('button', { name: /^Colours/ }).click()
    expect(await page.evaluate('document.documentElement.dataset.theme')).toBe('dark')
    for (const hash of ['#/', '#/services', '#/service?name=work%2Fsaythx-redis', '#/flows', '#/history']) {
      await page.evaluate(`location.assign(${JSON.stringify(hash)})`)
      await page.waitForTimeout(300)
      await check({ page, name: 'dark-1440' }, hash.replace(/\W+/g, '-'))
    }
    expect(errors).toEqual([])
    expect(foreign).toEqual([])
  })

  it('explains any client, and says so as a command', async () => {
    const { page } = opened[0] as OpenedPage
    await page.evaluate("location.assign('#/service?name=work%2Fsaythx-redis')")
    await page.getByRole('textbox', { name: 'from' }).fill('10.32.0.9')
    await page.getByRole('button', { name: 'Explain', exact: true }).click()
    await page.getByText('10.32.0.9 counts as a local pod').waitFor()
    await page.locator('svg text').filter({ hasText: 'not masqueraded: source kept' }).waitFor()
    await page.getByRole('button', { name: /^Copy the command .*explain .*--from 10\.32\.0\.9/ }).click()
    expect(await page.evaluate('navigator.clipboard.readText()')).toMatch(
      /explain 10\.103\.[\d.]+:6379\/tcp --from 10\.32\.0\.9/,
    )
    await page.getByRole('textbox', { name: 'from' }).fill('not an address')
    await page.getByRole('button', { name: 'Explain', exact: true }).click()
    await page.getByRole('alert').first().waitFor()
  })

  it('compares with the kernel when asked', async () => {
    const { page } = opened[0] as OpenedPage
    await page.getByRole('button', { name: 'Compare with the kernel' }).click()
    await page
      .getByText(/all \d+ entries as wanted/)
      .first()
      .waitFor()
  })

  it('follows a change without being asked', async () => {
    const { page } = opened[0] as OpenedPage
    await page.evaluate("location.assign('#/services')")
    const row = page.getByRole('row').filter({ hasText: 'default/nobody' })
    await row.waitFor()
    const kubeconfig = /kubectl --kubeconfig (\S+)/.exec(output)?.[1] as string
    const name = await createService(kubeconfig)
    await until(
      'the list shows the new service',
      async () => (await page.getByRole('row').filter({ hasText: name }).count()) > 0,
    )
  })

  it.each(['light', 'dark'] as const)('is usable on a phone, %s', async (theme) => {
    const { page, errors } = await open({ width: 390, height: 844, theme })
    for (const hash of ['#/', '#/services', '#/service?name=work%2Fsaythx-redis', '#/history']) {
      await page.evaluate(`location.assign(${JSON.stringify(hash)})`)
      await page.getByRole('heading', { level: 1 }).waitFor()
      await page.waitForTimeout(500)
      const width = await page.evaluate('document.documentElement.scrollWidth')
      expect(width, `${hash} is wider than the phone`).toBeLessThanOrEqual(390)
      await check({ page, name: `${theme}-390` }, hash.replace(/\W+/g, '-'))
    }
    expect(errors).toEqual([])
  })

  async function check({ page, name }: { page: OpenedPage['page']; name: string }, what: string): Promise<void> {
    // Only the colours depend on the theme.
    const rules = name.startsWith('dark') ? ['color-contrast', 'link-in-text-block'] : []
    expect(await findBarriers(page, rules), `${what}, ${name}`).toEqual([])
    if (shots !== '') await page.screenshot({ path: join(shots, `${what.replace(/^-|-$/g, '')}-${name}.png`) })
  }
})

/** Creates a service by the API of the demo. */
async function createService(kubeconfig: string): Promise<string> {
  const { loadConnection } = await import('../../src/kube/kubeconfig.ts')
  const { Client } = await import('../../src/kube/client.ts')
  const { silentLogger } = await import('../../src/lib/log.ts')
  const { systemClock } = await import('../../src/lib/time.ts')
  const connection = loadConnection({ kubeconfig, master: '' })
  const client = new Client(connection, {
    qps: 50,
    burst: 100,
    userAgent: 'test',
    log: silentLogger,
    clock: systemClock,
  })
  try {
    const body = {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name: 'appears', namespace: 'default' },
      spec: { ports: [{ port: 80 }], selector: { app: 'hello' } },
    }
    await client.request({ method: 'POST', path: '/api/v1/namespaces/default/services', body })
  } finally {
    client.close()
  }
  return 'default/appears'
}
