// Lists our table with the installed nft: nft prints it without errors, names the services, and loads the same table from its own output.

import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { canOwn, nftWritesRanges } from '../lab/kernel-traits.ts'
import { InProcessProxy, objectsOf, scenario } from './in-process-proxy.ts'
import { serviceOf } from './manifest-builders.ts'

const golden = join(import.meta.dirname, '../backend/nftables/table.nft')

const version = execFileSync('nft', ['--version'], { encoding: 'utf8' })

let namespace: EnteredNamespace
let proxy: InProcessProxy | undefined

beforeAll(() => {
  namespace = enterNamespace()
})

afterEach(async () => {
  await proxy?.stop()
  namespace.exec('nft', ['flush', 'ruleset'])
})

afterAll(() => namespace.leave())

const nft = (...args: string[]) => namespace.exec('nft', args)

/** Loads the six services of scenario S11 in both families, with all kinds of frontends, affinity and source ranges. */
async function load(features?: string): Promise<void> {
  const four = scenario('S11')
  const six = scenario('S11.v6')
  proxy = await InProcessProxy.start(
    { ...four.node.nftables, serviceCIDRs: [...four.node.nftables.serviceCIDRs, ...six.node.nftables.serviceCIDRs] },
    features === undefined ? {} : { features },
  )
  proxy.put(...objectsOf(four), ...objectsOf(six).map(renamed))
  proxy.synced()
  await proxy.settled()
}

/** Both families are loaded at the same time, so the services of one need other names. */
function renamed<M extends { metadata: { name: string } }>(manifest: M): M {
  const text = JSON.stringify(manifest).replaceAll(/svc(\d)/g, 'six$1')
  return JSON.parse(text) as M
}

describe('nft', () => {
  // Other versions print the same rules a little differently.
  it.skipIf(!version.includes('v1.0.6 ') || !canOwn)(
    'prints our table as in table.nft, which people can review',
    async () => {
      await load()
      // Tables are listed one by one, because a ruleset is listed in the order in which its tables were made, and that order varies.
      const tables = ['ip', 'ip6'].map((family) => nft('list', 'table', family, 'kube-proxy'))
      const listed = tables.join('').replaceAll(/ # progname.*$/gm, '')
      if (process.env.UPDATE_GOLDEN !== undefined) writeFileSync(golden, listed)
      expect(listed).toBe(readFileSync(golden, 'utf8'))
    },
  )

  it.each([
    ['owned', undefined],
    ['not owned', ''],
  ])('prints our table in both formats with the names of the services: %s', async (_, features) => {
    await load(features)
    const text = nft('list', 'ruleset')
    expect(/flags owner/.test(text)).toBe(features === undefined && canOwn)
    const { nftables } = JSON.parse(nft('-j', 'list', 'ruleset')) as { nftables: readonly object[] }
    expect(nftables.length).toBeGreaterThan(50)
    for (const name of ['ns1/svc1:p80', 'ns2/svc2:p80', 'ns5/six5:p80', 'ns6/six6:p80']) {
      expect(text).toContain(`comment "${name}"`)
      expect(JSON.stringify(nftables)).toContain(name)
    }
  })

  it.skipIf(!nftWritesRanges)('loads the text that it prints, and prints the same again', async () => {
    await load('')
    const syncs = proxy?.reports.length
    const longest = serviceOf('s'.repeat(63), '172.30.0.99', [{ name: 'p'.repeat(15), port: 80 }])
    proxy?.put({ ...longest, metadata: { ...longest.metadata, namespace: 'n'.repeat(63) } })
    await proxy?.settled(syncs)
    const text = nft('list', 'ruleset')
    const copy = `${namespace.name}-copy`
    namespace.exec('ip', ['netns', 'add', copy])
    try {
      namespace.exec('ip', ['netns', 'exec', copy, 'nft', '-f', '-'], text)
      expect(namespace.exec('ip', ['netns', 'exec', copy, 'nft', 'list', 'ruleset'])).toBe(text)
    } finally {
      namespace.exec('ip', ['netns', 'del', copy])
    }
  })

  it('prints the same without flags after our table was released', async () => {
    await load()
    const owned = nft('list', 'ruleset')
    await proxy?.stop()
    proxy = undefined
    const left = nft('list', 'ruleset')
    expect(normal(left)).toBe(normal(owned.replaceAll(/^\tflags .*\n/gm, '').replaceAll(/ # progname.*$/gm, '')))
  })
})

/** Sorts the lines, because the order of elements is up to the kernel. */
const normal = (text: string): string =>
  text
    .split('\n')
    .map((line) => line.replace(/elements = \{|[{},]/g, '').trim())
    .filter((line) => line !== '')
    .sort()
    .join('\n')
