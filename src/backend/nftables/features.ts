// What this kernel's nf_tables can do; found out by trying, in transactions that leave nothing behind.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { EPERM } from '../../sys/errno.ts'
import { beginBatch, endBatch, writeChain, writeSet, writeTable } from '../../sys/netlink/nft/objects.ts'
import { TABLE_OWNER, TABLE_PERSIST } from '../../sys/netlink/nft/types.ts'
import type { Nftables } from '../../sys/netlink/nftables.ts'
import { MessageWriter } from '../../sys/netlink/writer.ts'
import { declare } from './shapes.ts'

export interface Features {
  /** The table can be ours alone: nobody else's flush touches it (Linux 5.12). */
  readonly owner: boolean
  /** It can also outlive us, without which owning it is of no use (Linux 6.9). */
  readonly persist: boolean
  /** Deleting what is not there is no error (Linux 6.3). */
  readonly destroy: boolean
}

const probe = 'sluice-probe'

/** Throws a ProxyError that says what is missing if the mode cannot work at all. */
export async function findFeatures(nft: Nftables, family: Family): Promise<Features> {
  const table = { family, name: probe }
  const required = await attempt(nft, (w) => {
    writeTable(w, table)
    writeChain(w, { family, table: probe, name: 'nat', base: { type: 'nat', hook: 'prerouting', priority: -100 } })
    const ranges = declare({ name: 'ranges', shape: 'address . protocol . port . range', comment: '' }, family)
    writeSet(w, { family, table: probe, name: 'ranges', id: 1, ...ranges })
    const slots = declare(
      { name: 'slots', shape: 'address . protocol . port . slot : address . port', comment: '' },
      family,
    )
    writeSet(w, { family, table: probe, name: 'slots', id: 2, ...slots })
    writeTable(w, table, 'delete')
  })
  if (required !== undefined) {
    const missing =
      required.errno === EPERM
        ? 'CAP_NET_ADMIN is missing: nftables mode must run as root or with that capability'
        : 'this kernel cannot do nftables mode: it needs nf_tables with NAT, maps and concatenated ranges (Linux 5.13)'
    throw new ProxyError('nftables', missing, { cause: nft.failure('try the kernel', required) })
  }
  const withFlags = (flags: number) => (w: MessageWriter) => {
    writeTable(w, { ...table, flags })
    writeTable(w, table, 'delete')
  }
  const works = async (write: (writer: MessageWriter) => void) => (await attempt(nft, write)) === undefined
  return {
    owner: await works(withFlags(TABLE_OWNER)),
    persist: await works(withFlags(TABLE_OWNER | TABLE_PERSIST)),
    destroy: await works((w) => writeTable(w, table, 'destroy')),
  }
}

/**
 * For tests: with `SLUICE_NFT_FEATURES` set, only the features it names are used (`owner,persist`; empty: none), so that the
 * ways of older kernels can be gone on a newer one.
 */
export function permitted(found: Features, names = process.env.SLUICE_NFT_FEATURES): Features {
  if (names === undefined) return found
  const allowed = new Set(names.split(','))
  const entries = Object.entries(found).map(([name, has]) => [name, has && allowed.has(name)])
  return Object.fromEntries(entries) as Features
}

async function attempt(nft: Nftables, write: (writer: MessageWriter) => void) {
  const writer = new MessageWriter()
  beginBatch(writer)
  write(writer)
  const { failures } = await nft.commit(writer, endBatch(writer))
  return failures[0]
}
