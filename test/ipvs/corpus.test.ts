// Every scenario of the corpus through IPVS, with real packets.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { deviations } from './deviations.ts'
import { interpreted } from './stage.ts'
import { holdings } from './witness.ts'

/** SLUICE_FULL=1 runs every scenario and twin in an emulated CPU, too, which takes half an hour. */
const full = process.env.SLUICE_IN_VM !== '1' || process.env.SLUICE_FULL === '1'
/** About which endpoints and objects count: the model has decided that before any backend hears of them. */
const modelOnly = /^(topology-|S[789]|terminating|unready|target-ports|proxy-name|sloppy|lb-modes|orders)/
const twins = ['S1.v6', 'S3.v6.udp', 'S5.udp', 'S10a.v6', 'detect-bridge.v6.udp', 'both-local.v6', 'source-ranges.udp']
const wanted = (name: string) => full || (!modelOnly.test(name) && (!/\.(v6|udp)/.test(name) || twins.includes(name)))

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
