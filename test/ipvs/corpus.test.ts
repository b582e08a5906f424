// Plays every scenario of the corpus through IPVS with real packets.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import { isPlayedHere } from '../lab/corpus-selection.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { deviations } from './deviations.ts'
import { holdings } from './ipvs-holdings.ts'

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (): EngineDriver => {
  const driver = new EngineDriver({ holdings, keepBase: true })
  drivers.push(driver)
  return driver
}

const only = (process.env.ONLY ?? '*').split(',')
runCorpus(makeDriver, { mode: 'ipvs', deviations, wanted: isPlayedHere, only })
