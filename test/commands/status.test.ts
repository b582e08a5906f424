import { describe, expect, it } from 'vitest'
import { matches, sortServices } from '../../src/commands/answers/status-answer.ts'
import type { ServiceSummary } from '../../src/http/admin.ts'
import { directory, shop, sluice } from './run-command.ts'

const labelled = shop.replace(
  'metadata: {name: web, namespace: shop}',
  'metadata: {name: web, namespace: shop, labels: {app: web}}',
)

async function services(...argv: string[]): Promise<readonly string[]> {
  const source = ['--manifests', directory({ 'shop.yaml': labelled }), '--node', 'a']
  const { stdout, stderr } = await sluice('status', ...argv, ...source, '-o', 'json')
  expect(stderr).toBe('')
  return (JSON.parse(stdout) as { services: ServiceSummary[] }).services.map(({ service }) => service)
}

const summary = (service: string, more: Partial<ServiceSummary> = {}): ServiceSummary => ({
  service,
  family: 4,
  ports: [],
  pending: false,
  entries: 0,
  wrong: [],
  lost: [],
  quarantine: '',
  ...more,
})

describe('status', () => {
  it('shows services of all namespaces, of one, with labels, or one by any of its names', async () => {
    const all = ['default/kubernetes', 'shop/empty', 'shop/web']
    expect(await services()).toEqual(all)
    expect(await services('-A')).toEqual(all)
    expect(await services('-n', 'shop')).toEqual(['shop/empty', 'shop/web'])
    expect(await services('-l', 'app=web')).toEqual(['shop/web'])
    expect(await services('-l', 'app!=web', '-n', 'shop')).toEqual(['shop/empty'])
    for (const name of ['shop/web', 'web.shop.svc.cluster.local', 'svc/shop/web']) {
      expect(await services(name)).toEqual(['shop/web'])
    }
    expect(await services('web', '-n', 'shop')).toEqual(['shop/web'])
    expect(matches({ service: '', namespace: 'shop', selected: undefined }, 'shop2/web')).toBe(false)
  })

  it('sorts by name, and by everything else with the most or the worst first', async () => {
    expect((await services('--sort-by', 'endpoints'))[0]).toBe('shop/web')
    const list = [
      summary('a/ok', { entries: 9 }),
      summary('b/lost', { lost: ['x'] }),
      summary('c/wrong', { wrong: ['x'], entries: 3 }),
      summary('d/ok'),
    ]
    const sorted = (by: Parameters<typeof sortServices>[1]) => sortServices(list, by).map(({ service }) => service)
    expect(sorted('name')).toEqual(['a/ok', 'b/lost', 'c/wrong', 'd/ok'])
    expect(sorted('state')).toEqual(['c/wrong', 'b/lost', 'a/ok', 'd/ok'])
    expect(sorted('entries')).toEqual(['a/ok', 'c/wrong', 'b/lost', 'd/ok'])
  })

  it('says which selector it does not understand, and which flags exclude each other', async () => {
    const source = ['--manifests', directory({ 'shop.yaml': labelled }), '--node', 'a']
    expect(await sluice('status', '-l', '=!', ...source)).toMatchObject({ status: 1, stdout: '' })
    expect((await sluice('status', 'web', '-l', 'a=b', ...source)).stderr).toContain('exclude each other')
    expect((await sluice('status', '--sort-by', 'age', ...source)).stderr).toContain('allowed: name, endpoints')
  })

  it('says that the kernel was not checked where it was not, instead of counting nothing', async () => {
    const source = ['--manifests', directory({ 'shop.yaml': labelled }), '--node', 'a']
    const { stdout } = await sluice('status', ...source)
    expect(stdout).toMatch(/shop\/web +IPv4 +1 +2 +not checked +ok/)
    expect(stdout).not.toMatch(/\d+\/\d+ \(/)
  })

  it('names endpoints of this node whatever the policy is', async () => {
    const source = ['--manifests', directory({ 'shop.yaml': labelled }), '--node', 'a']
    const { stdout } = await sluice('status', 'shop/web', ...source)
    expect(stdout).toContain('10.1.0.11:8080 (this node), 10.1.1.12:8080')
  })
})
