// What this kernel has of what the modes can use, as one line of JSON: run in a VM for the table of kernels.

import { execFileSync } from 'node:child_process'
import { appendFileSync } from 'node:fs'
import { release } from 'node:os'
import { findFeatures } from '../../src/backend/nftables/features.ts'
import { describeError } from '../../src/lib/errors.ts'
import { ConntrackTable } from '../../src/sys/netlink/conntrack.ts'
import { Nftables } from '../../src/sys/netlink/nft/nftables.ts'

export interface Traits {
  readonly release: string
  /** By name: whether it is there. */
  readonly has: Readonly<Record<string, boolean>>
}

const works = (program: string, ...args: string[]): boolean => {
  try {
    execFileSync(program, args, { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}

async function nftablesTraits(): Promise<Record<string, boolean>> {
  const nft = new Nftables()
  try {
    const { owner, persist, destroy } = await findFeatures(nft, 4)
    return { 'nftables mode': true, owner, persist, destroy }
  } catch (error) {
    process.stderr.write(`${describeError(error)}\n`)
    return { 'nftables mode': false }
  } finally {
    nft.close()
  }
}

async function conntrackTraits(): Promise<Record<string, boolean>> {
  const { filteredList, filteredDelete } = await new ConntrackTable().features()
  return { 'filtered conntrack list': filteredList, 'filtered conntrack delete': filteredDelete }
}

const schedulers = ['rr', 'wrr', 'lc', 'wlc', 'lblc', 'lblcr', 'sh', 'dh', 'sed', 'nq', 'fo', 'ovf', 'mh']
const modules = {
  nfacct: 'xt_nfacct',
  SCTP: 'sctp',
  IPVS: 'ip_vs',
  ipset: 'ip_set',
  dummy: 'dummy',
  'iptables-legacy': 'iptable_nat',
}
const has: Record<string, boolean> = { ...(await nftablesTraits()), ...(await conntrackTraits()) }
for (const [name, module] of Object.entries(modules)) has[name] = works('modprobe', '-q', module)
for (const name of schedulers) has[`scheduler ${name}`] = works('modprobe', '-q', `ip_vs_${name}`)
const traits: Traits = { release: release(), has }
const line = `${JSON.stringify({ traits })}\n`
if (process.env.SLUICE_RESULTS !== undefined) appendFileSync(process.env.SLUICE_RESULTS, line)
else process.stdout.write(line)
process.exit()
