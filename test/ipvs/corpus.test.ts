// Every scenario of the corpus through IPVS, with real packets.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { deviations } from './deviations.ts'
import { interpreted } from './stage.ts'
import { holdings } from './witness.ts'

/** In an emulated CPU: every scenario, but of their twins only some of each kind. SLUICE_FULL=1 runs all. */
const full = process.env.SLUICE_IN_VM !== '1' || process.env.SLUICE_FULL === '1'
const twins = ['S1.v6', 'S3.v6.udp', 'S5.udp', 'S10a.v6', 'detect-bridge.v6.udp', 'both-local.v6', 'source-ranges.udp']
const wanted = (name: string) => full || !/\.(v6|udp)/.test(name) || twins.includes(name)

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (): EngineDriver => {
  const driver = new EngineDriver({ holdings, keepBase: true, nodeArgs: interpreted })
  drivers.push(driver)
  return driver
}

const only = (process.env.ONLY ?? '*').split(',')
runCorpus(makeDriver, { mode: 'ipvs', deviations, lanes: 2, wanted, only })
