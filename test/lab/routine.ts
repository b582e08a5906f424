// Which scenarios run where packets are slow, unless the whole corpus is asked for.

import { full } from './vm.ts'

/** About which endpoints and objects count: the model has decided that before any backend hears of them. */
const modelOnly = /^(topology-|S[789]|terminating|unready|target-ports|proxy-name|sloppy|lb-modes|orders)/
const twins = ['S1.v6', 'S3.v6.udp', 'S5.udp', 'S10a.v6', 'detect-bridge.v6.udp', 'both-local.v6', 'source-ranges.udp']

export const isRoutine = (name: string): boolean =>
  full ||
  process.env.SLUICE_WHOLE === '1' ||
  (!modelOnly.test(name) && (!/\.(v6|udp)/.test(name) || twins.includes(name)))
