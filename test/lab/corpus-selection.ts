// Selects the scenarios that are played in a VM, where packets are slow. On a real machine all are played.

import { full } from './vm.ts'

/** Scenarios about which endpoints and objects count. The model decides that before any backend is involved; only `--whole` plays them. */
const modelOnly = /^(topology-|S[789]|terminating|unready|target-ports|proxy-name|sloppy|lb-modes|orders)/
/** Twins that are played besides those that differ in family and protocol. */
const twins = ['S1.v6', 'S5.udp', 'S10a.v6', 'both-local.v6', 'source-ranges.udp', 'sctp.v6']

/** Scenarios that use everything that a mode needs from a kernel, once: for tests of many kernels. */
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

/** `quick`, `whole`, or anything else for the routine selection. */
const level = process.env.SLUICE_CORPUS

export function isPlayedHere(name: string): boolean {
  if (full || level === 'whole') return true
  if (level === 'quick') return quick.has(name)
  if (modelOnly.test(name)) return false
  return !/\.(v6|udp)/.test(name) || name.endsWith('.v6.udp') || twins.includes(name)
}
