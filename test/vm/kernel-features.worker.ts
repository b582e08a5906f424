// Finds the kernel features that the modes can use, and prints them as one line of JSON. Runs in a VM, for the table of kernels.

import { execFileSync } from 'node:child_process'
import { appendFileSync } from 'node:fs'
import { release } from 'node:os'
import { FeatureProbe } from '../../src/backend/nftables/features.ts'
import { describeError } from '../../src/lib/errors.ts'
import { ConntrackTable } from '../../src/sys/netlink/conntrack.ts'
import { Nftables } from '../../src/sys/netlink/nft/nftables.ts'

export interface KernelFeatures {
  readonly release: string
  /** Whether the kernel has the feature, by its name. */
  readonly has: Readonly<Record<string, boolean>>
}

const succeeds = (program: string, ...args: string[]): boolean => {
  try {
    execFileSync(program, args, { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}

async function findNftablesFeatures(): Promise<Record<string, boolean>> {
  const nft = new Nftables()
  try {
    const { owner, persist, destroy } = await new FeatureProbe().find(nft, 4)
    return { 'nftables mode': true, owner, persist, destroy }
  } catch (error) {
    process.stderr.write(`${describeError(error)}\n`)
    return { 'nftables mode': false }
  } finally {
    nft.close()
  }
}

async function findConntrackFeatures(): Promise<Record<string, boolean>> {
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
const has: Record<string, boolean> = { ...(await findNftablesFeatures()), ...(await findConntrackFeatures()) }
for (const [name, module] of Object.entries(modules)) has[name] = succeeds('modprobe', '-q', module)
for (const name of schedulers) has[`scheduler ${name}`] = succeeds('modprobe', '-q', `ip_vs_${name}`)
const features: KernelFeatures = { release: release(), has }
const line = `${JSON.stringify({ features })}\n`
if (process.env.SLUICE_RESULTS !== undefined) appendFileSync(process.env.SLUICE_RESULTS, line)
else process.stdout.write(line)
process.exit()
