// Every scenario of the corpus through our iptables rules, with real packets, in the flavour that this machine has by default.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { holdings, privateLock } from './iptables-lab.ts'

privateLock()

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (): EngineDriver => {
  const driver = new EngineDriver({ holdings: holdings('nft') })
  drivers.push(driver)
  return driver
}

runCorpus(makeDriver, { mode: 'iptables', only: (process.env.ONLY ?? '*').split(',') })
