// Runs every scenario of the corpus with our iptables rules and real packets, in the default flavour of this machine.

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
      'a packet from outside that no service serves leaves by the router, whose answers do not come back through the node; of such half connections the mode drops the second TCP packet as invalid, as kube-proxy does',
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
