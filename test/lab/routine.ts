// Which scenarios run where packets are slow. On a real machine all do.

import { full } from './vm.ts'

/** About which endpoints and objects count: the model has decided that before any backend hears of them. Only `--whole` plays these. */
const modelOnly = /^(topology-|S[789]|terminating|unready|target-ports|proxy-name|sloppy|lb-modes|orders)/
/** Of the others, the twin that differs in both; and some that differ in one. */
const twins = ['S1.v6', 'S5.udp', 'S10a.v6', 'both-local.v6', 'source-ranges.udp', 'sctp.v6']

/** Everything that a mode needs of a kernel, once: for many kernels. */
const quick = new Set([
  ...['S1', 'S1.v6.udp', 'S2.v6', 'S3', 'S3.v6.udp', 'S4d', 'S5.v6', 'S6.udp', 'S7d.v6.udp', 'S10a', 'S11', 'S12.v6'],
  ...[
    'affinity',
    'affinity.v6',
    'source-ranges.udp',
    'service-cidrs',
    'dual-stack',
    'sctp',
    'sctp.v6',
    'both-local.v6',
  ],
  ...['detect-bridge.v6', 'detect-prefix', 'flow-replaced', 'flow-early.v6', 'internal-local.v6', 'rolling-update'],
])

/** SLUICE_CORPUS: `quick`, `whole`, or neither. */
const level = process.env.SLUICE_CORPUS

export function isRoutine(name: string): boolean {
  if (full || level === 'whole') return true
  if (level === 'quick') return quick.has(name)
  if (modelOnly.test(name)) return false
  return !/\.(v6|udp)/.test(name) || name.endsWith('.v6.udp') || twins.includes(name)
}
