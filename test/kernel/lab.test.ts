// Tests the lab and the corpus with rules that are not ours: every packet of the nftables column, on a real kernel. And tests that the
// lab notices faults: for each way of breaking these rules it must complain about the right packets.

import { readdirSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import { Lab } from '../lab/lab.ts'
import { arrangementOf, playScenario } from '../lab/play.ts'
import { loadScenarios } from '../scenarios/load.ts'
import { takenByKubeProxy, unknownToKubeProxy } from './reference-model.ts'
import { NftablesReferenceDriver } from './reference-nftables.ts'

runCorpus(() => new NftablesReferenceDriver(), {
  mode: 'nftables',
  deviations: [
    { reason: 'rules alone cannot serve loopback; our mode listens there', scenarios: ['S4h'] },
    { reason: 'kube-proxy takes reserved addresses and pods of others', scenarios: takenByKubeProxy },
    { reason: 'kube-proxy has no weights and no algorithms', scenarios: unknownToKubeProxy },
  ],
})

/** Removes the lines that match. */
const without = (pattern: RegExp) => (rules: string) =>
  rules
    .split('\n')
    .filter((line) => !pattern.test(line))
    .join('\n')

interface Fault {
  readonly what: string
  readonly scenario: string
  readonly spoil: (rules: string) => string
  /** The packets about which the lab must complain, and no others, with a part of each complaint. */
  readonly noticed: Readonly<Record<string, string>>
}

const rewritten = 'expected the source rewritten'

const faults: readonly Fault[] = [
  {
    what: 'a drop where a rejection is due',
    scenario: 'S7e.udp',
    spoil: (rules) => rules.replaceAll('goto reject-chain', 'drop').replace(/@cluster-ips reject/, '@cluster-ips drop'),
    noticed: { 'S7e-1': 'was dropped', 'S7e-2': 'was dropped' },
  },
  {
    what: 'a rejection where a drop is due',
    scenario: 'S7d.v6',
    spoil: (rules) => rules.replaceAll(': drop', ': goto reject-chain'),
    noticed: { 'S7d-1': 'ECONNREFUSED', 'S7d-2': 'ECONNREFUSED', 'S7d-3': 'ECONNREFUSED' },
  },
  {
    what: 'no hairpin',
    scenario: 'S2',
    // The answer of a pod to itself never leaves it, so that nothing translates it back, and the client resets the connection.
    spoil: without(/masquerading.*@hairpin-connections/),
    noticed: { F10: 'expected one of 10.180.0.1:80' },
  },
  {
    what: 'no masquerade',
    scenario: 'S6.udp',
    spoil: without(/rule.*masquerading.*xor/),
    noticed: { F70: rewritten, F71: rewritten, F72: rewritten, F73: rewritten, F74: rewritten, F75: rewritten },
  },
  {
    what: 'masquerade of everything',
    scenario: 'S7a.v6',
    spoil: (rules) => rules.replace(/masquerading mark and \S+ != 0/, 'masquerading'),
    noticed: { F76: 'expected the source kept' },
  },
  {
    what: 'no firewall',
    scenario: 'S3.v6.udp',
    spoil: without(/element .* firewall-ips/),
    noticed: { F24: 'reached', F25: 'reached', F26: 'reached', F27: 'reached' },
  },
  {
    what: 'an endpoint left out',
    scenario: 'S7c',
    spoil: (rules) =>
      rules.replace('mod 2 map { 0 : 10.0.1.1 . 80, 1 : 10.0.1.2 . 80 }', 'mod 1 map { 0 : 10.0.1.1 . 80 }'),
    noticed: { F78: 'never reached 10.0.1.2:80' },
  },
  {
    what: 'an endpoint that should not be there',
    scenario: 'S7b.udp',
    spoil: (rules) => rules.replace('mod 1 map { 0 : 10.0.1.1 . 80 }', 'mod 1 map { 0 : 10.0.1.2 . 80 }'),
    noticed: { F77: 'reached 10.0.1.2:80' },
  },
  {
    what: 'node ports served nowhere',
    scenario: 'S4f.v6',
    spoil: without(/element .* service-nodeports/),
    noticed: { F58: 'passed untouched (the node itself)', F59: 'the node itself', F61: 'the node itself' },
  },
  {
    what: 'traffic to unallocated addresses let through',
    scenario: 'service-cidrs',
    spoil: without(/cluster-ips-check.*drop$/),
    noticed: {
      'cidrs-3': 'passed untouched (left the node)',
      'cidrs-4': 'left the node',
      'cidrs-5': 'left the node',
      'cidrs-7': 'left the node',
    },
  },
  {
    what: 'an SCTP endpoint that should not be there, and SCTP dropped',
    scenario: 'sctp.v6',
    spoil: (rules) =>
      rules.replaceAll('fd00:10:180:2::1 . 8080', 'fd00:10:180::1 . 8080').replaceAll('goto reject-chain', 'drop'),
    noticed: {
      J13a: 'never reached [fd00:10:180:2::1]:8080',
      J13b: 'never reached',
      J13c: 'never reached',
      J13d: 'was dropped',
    },
  },
  {
    what: 'no affinity',
    scenario: 'affinity-lb.udp',
    spoil: without(/saddr @affinity-/),
    noticed: { J10k: 'as before', J10l: 'as before', J10m: 'as before' },
  },
]

describe('the lab', () => {
  it('leaves no namespace behind', async () => {
    const mine = () => readdirSync('/run/netns').filter((name) => name.startsWith(`slu-${process.pid}-`))
    const before = mine().length
    const lab = await Lab.create(['10.0.0.2'])
    expect(mine().length).toBe(before + 6)
    await lab.close()
    expect(mine().length).toBe(before)
  })

  it.each(faults.map((fault) => [fault.what, fault] as const))('notices %s', async (_, fault) => {
    const scenario = loadScenarios().find(({ name }) => name === fault.scenario)!
    const lab = await Lab.create(arrangementOf(scenario).localPods)
    try {
      const driver = new NftablesReferenceDriver(fault.spoil)
      const { complaints } = await playScenario({ lab, driver, scenario, mode: 'nftables', deviations: [] })
      const byPacket = new Map(complaints.map((text) => [text.split(' ')[1] as string, text]))
      expect([...byPacket.keys()].sort(), complaints.join('\n')).toEqual(Object.keys(fault.noticed).sort())
      for (const [id, words] of Object.entries(fault.noticed)) expect(byPacket.get(id)).toContain(words)
    } finally {
      await lab.close()
    }
  })

  it('notices what is left when all is deleted', async () => {
    const scenario = loadScenarios().find(({ name }) => name === 'S7a')!
    const lab = await Lab.create(arrangementOf(scenario).localPods)
    try {
      const driver = new NftablesReferenceDriver(
        (rules) => `${rules}add element ip reference cluster-ips { 172.30.9.9 }\n`,
      )
      const { complaints } = await playScenario({ lab, driver, scenario, mode: 'nftables', deviations: [] })
      expect(complaints).toHaveLength(1)
      expect(complaints[0]).toContain('still holds set cluster-ips')
    } finally {
      await lab.close()
    }
  })
})
