// Every scenario of the corpus through IPVS, with real packets.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { deviations } from './deviations.ts'
import { holdings } from './witness.ts'

/** In an emulated CPU compiled code is dearer than interpreted: it is translated once more. */
const interpreted = process.env.SLUICE_IN_VM === '1' ? ['--no-opt', '--max-lazy', '--no-sparkplug'] : []

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (): EngineDriver => {
  const driver = new EngineDriver({ holdings, keepBase: true, nodeArgs: interpreted })
  drivers.push(driver)
  return driver
}

runCorpus(makeDriver, { mode: 'ipvs', deviations, lanes: 2, only: (process.env.ONLY ?? '*').split(',') })
