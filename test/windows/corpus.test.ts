// Plays the corpus with the real bundle under Wine: every scenario that userspace mode can play without rules of the kernel.

import { afterAll, describe, expect, it } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import type { Deviation } from '../lab/driver.ts'
import { loadScenarios } from '../scenarios/load.ts'
import { WindowsDriver } from './windows-driver.ts'
import { whyNotWine } from './wine.ts'

const deviations: readonly Deviation[] = [
  {
    reason: 'without rules no connection is dropped silently: clients that may not connect are reset',
    scenarios: [
      ...['S11/S11-8', 'S11/S11-9', 'S11/S11-10', 'S11/S11-15', 'source-ranges/J15[cdghi]', 'external-local/P19c'],
      ...['terminating-last/P20h', 'both-local/P11d', 'sloppy/C14c', 'S3/F2[4-7]', 'S8c/S8c-2', 'S8d/S8d-2'],
    ].flatMap(expandRange),
    protocol: 'tcp',
    instead: { outcome: 'reset', snat: undefined },
  },
  {
    reason: 'nothing is dropped silently: the system refuses clients of an address on which no socket listens',
    scenarios: [
      ...['S7d/S7d-1', 'S7d/S7d-2', 'S7d/S7d-3', 'S12/S12-2', 'S12/S12-3', 'internal-local/P17[cd]'],
      ...['terminating-last/P20g', 'both-local/P11a'],
    ].flatMap(expandRange),
    instead: { outcome: 'reject', snat: undefined },
  },
  {
    reason: 'every address of a service is on the node, which refuses clients of its other ports',
    scenarios: ['external-ip/J7d', 'conflict-lb/conflict-8'],
    instead: { outcome: 'reject', snat: undefined },
  },
  {
    reason: 'an address that no service has is not touched',
    scenarios: [
      ...['up-and-down/J5c', 'type-changes/J8[ah]', 'proxy-name/J14[ac]', 'orders/orders-1', 'orders/orders-4'],
      ...['orders/orders-6', 'service-cidrs/cidrs-[3457]', 'S2/F18', 'shared-endpoints/shared-5'],
    ].flatMap(expandRange),
    instead: { outcome: 'pass', snat: undefined },
  },
  {
    reason: 'Windows has no names of interfaces by which pods are known',
    scenarios: ['detect-bridge*', 'detect-prefix*'],
  },
  {
    reason: 'the API server of this test is on loopback, not where the scenario has it',
    scenarios: ['api-server', 'api-server-in-service-cidr'],
  },
  { reason: 'the real health server answers there', scenarios: ['own-listeners/own-1'] },
  {
    reason: 'the node port has all addresses, and under Wine no second socket can have one of them',
    scenarios: ['address-before-node-port/before-1'],
  },
  {
    reason: 'the relay makes a connection of its own: endpoints see this node, never the client',
    scenarios: ['*/*'],
    snat: true,
  },
]

/** `P20[gh]` is P20g and P20h; `F2[4-7]` is four packets. */
function expandRange(text: string): readonly string[] {
  const [, before = '', set = '', after = ''] = /^(.*)\[(.*)\](.*)$/.exec(text) ?? []
  if (set === '') return [text]
  const [first, last] = set.split('-').map(Number)
  const count = last === undefined ? 0 : last - (first as number) + 1
  const letters = count === 0 ? [...set] : Array.from({ length: count }, (_, i) => String((first as number) + i))
  return letters.map((letter) => `${before}${letter}${after}`)
}

/** Everything that the mode does on Windows, once: the rest is played if the user names it, or with SLUICE_CORPUS=whole. */
const routine = new Set([
  ...[
    'S1.v6.udp',
    'S2',
    'S3',
    'S3.v6.udp',
    'S4d',
    'S5.v6.udp',
    'S7d.v6.udp',
    'S11',
    'S12',
    'affinity',
    'affinity.v6.udp',
  ],
  ...[
    'no-endpoints-later',
    'source-ranges',
    'ports-change',
    'two-protocols',
    'type-changes',
    'up-and-down',
    'both-local',
  ],
  ...['node-port-later', 'internal-local', 'external-ip', 'external-ip-gate', 'conflict-lb', 'conflict-node-port'],
  ...['dual-stack', 'own-listeners', 'address-before-node-port', 'flow-replaced.v6', 'rolling-update.v6.udp'],
])
const isWhole = process.env.SLUICE_CORPUS === 'whole'
const isPlayed = (name: string): boolean => process.env.ONLY !== undefined || isWhole || routine.has(name)

it('names only scenarios that exist', () => {
  const names = new Set(loadScenarios().map(({ name }) => name))
  expect([...routine].filter((name) => !names.has(name))).toEqual([])
})

const drivers: WindowsDriver[] = []
afterAll(async () => {
  for (const driver of drivers) await driver.close()
})

describe.skipIf(whyNotWine() !== undefined)('on Windows', () => {
  const makeDriver = async (lab: Parameters<WindowsDriver['open']>[0]): Promise<WindowsDriver> => {
    const driver = new WindowsDriver()
    drivers.push(driver)
    await driver.open(lab)
    return driver
  }
  const only = (process.env.ONLY ?? '*').split(',')
  runCorpus(makeDriver, {
    mode: 'userspace',
    protocols: ['tcp', 'udp'],
    deviations,
    only,
    wanted: isPlayed,
    // A second Wine takes as long to start as it saves in a short run.
    lanes: isWhole ? 2 : 1,
  })
})
