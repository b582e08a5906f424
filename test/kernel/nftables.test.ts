// Every scenario of the corpus through our nftables table, with real packets.

import { afterAll, describe } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import { isPlayedHere } from '../lab/corpus-selection.ts'
import type { StartOptions } from '../lab/driver.ts'
import { EngineDriver } from '../lab/engine-driver.ts'

const containers = ['cluster-ips', 'service-ips', 'service-nodeports', 'no-endpoint-services', 'no-endpoint-nodeports']

/** Lists what the table still holds, with `nft`, which is independent of our netlink code. Unused slots and chains stay for a second by design. */
async function holdings({ node, families }: StartOptions): Promise<readonly string[]> {
  const left: string[] = []
  for (const family of families) {
    const table = family === 4 ? 'ip' : 'ip6'
    const { code, stdout, stderr } = await node.exec('nft', ['list', 'table', table, 'kube-proxy'])
    if (code !== 0) left.push(`nft cannot list our table: ${stderr}`)
    for (const name of [...containers, 'hairpin-connections', 'firewalled-ips', 'firewall-allowed']) {
      const block = new RegExp(`(?:set|map) ${name} \\{[^}]*elements = \\{`).exec(stdout)
      if (block !== null) left.push(`${table} ${name} is not empty`)
    }
    if (/chain (service|local|external|endpoint)-/.test(stdout) && /goto endpoint-/.test(stdout))
      left.push('affinity chains')
  }
  return left
}

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (listens: boolean): EngineDriver => {
  const driver = new EngineDriver({ holdings, listens })
  drivers.push(driver)
  return driver
}

const only = process.env.ONLY?.split(',')

/** In these scenarios the proxy listens on loopback, where the lab listens otherwise to see what passes. */
const loopback = ['S4h*']

runCorpus(() => makeDriver(false), {
  mode: 'nftables',
  only: only ?? ['*'],
  wanted: isPlayedHere,
  deviations: only === undefined ? [{ reason: 'see below', scenarios: loopback }] : [],
})

if (only === undefined) {
  describe('node ports on loopback', () => {
    runCorpus(() => makeDriver(true), { mode: 'nftables', only: loopback, lanes: 1 })
  })
}
