// Every scenario of the corpus through our iptables rules, with real packets, in the flavour that this machine has by default.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import { isPlayedHere } from '../lab/corpus-selection.ts'
import type { Deviation } from '../lab/driver.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { holdings, privateLock } from './iptables-holdings.ts'

privateLock()

const deviations: readonly Deviation[] = [
  {
    reason:
      'what comes from outside for nobody leaves by the router, whose answers do not come back through the node: of such half connections the mode drops the second TCP packet as invalid, as kube-proxy does',
    scenarios: ['type-changes/J8j', 'service-cidrs/cidrs-5', 'conflict-lb/conflict-8'],
  },
]

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (): EngineDriver => {
  const driver = new EngineDriver({ holdings: holdings('nft') })
  drivers.push(driver)
  return driver
}

runCorpus(makeDriver, {
  mode: 'iptables',
  deviations,
  wanted: isPlayedHere,
  only: (process.env.ONLY ?? '*').split(','),
})
