// The addresses of services as entries: each is on kube-ipvs0 and a member of KUBE-IPVS-IPS, and both change together.

import type { Family } from '../../../lib/ip.ts'
import type { Wait } from '../../../sys/netlink/socket.ts'
import type { Held, RefusedEntry } from '../../backend.ts'
import { addressEntry, memberEntry, splitMember } from '../entries.ts'
import { setName } from '../set-definitions.ts'
import type { DeviceAddresses } from './device-addresses.ts'
import type { Ipsets } from './ipsets.ts'

export class BoundAddresses {
  readonly #device: DeviceAddresses
  readonly #ipsets: Ipsets
  readonly #set: string
  /** Members of KUBE-IPVS-IPS. */
  readonly #listed = new Set<string>()

  constructor(device: DeviceAddresses, ipsets: Ipsets, family: Family) {
    this.#device = device
    this.#ipsets = ipsets
    this.#set = setName('KUBE-IPVS-IPS', family)
  }

  /** Replaces the members of KUBE-IPVS-IPS by entries of addresses, which also say whether the address is on the device. */
  replaceMembers(held: readonly Held[]): readonly Held[] {
    const { bound, elsewhere } = this.#device
    this.#listed.clear()
    const others = held.filter(({ id, kind }) => {
      const [set, member] = kind === 'member' ? splitMember(id) : []
      if (set !== this.#set || member === undefined) return true
      this.#listed.add(member)
      return false
    })
    const addresses = [...new Set([...bound, ...this.#listed])].map((ip) => {
      const isWhole = bound.has(ip) && this.#listed.has(ip)
      return isWhole ? addressEntry(ip) : { ...addressEntry(ip), digest: 'half' }
    })
    const absent = [...elsewhere].filter((ip) => !bound.has(ip) && !this.#listed.has(ip))
    return [...others, ...addresses, ...absent.map(addressEntry)]
  }

  async bind(ips: readonly string[], wait: Wait): Promise<readonly RefusedEntry[]> {
    if (ips.length === 0) return []
    const { bound, refused } = await this.#device.bind(ips, wait)
    const unlisted = bound.filter((ip) => !this.#listed.has(ip))
    const refusedMembers = await this.#ipsets.addMembers(this.#memberIds(unlisted), wait)
    for (const ip of unlisted) this.#listed.add(ip)
    // Another interface has got these addresses meanwhile.
    await this.#remove(
      ips.filter((ip) => this.#device.elsewhere.has(ip)),
      wait,
    )
    return [...refused, ...refusedMembers.map(({ id, error }) => ({ id: addressEntry(splitMember(id)[1]).id, error }))]
  }

  async unbind(ips: readonly string[], wait: Wait): Promise<void> {
    this.#device.forgetElsewhere(ips)
    await this.#remove(ips, wait)
  }

  async #remove(ips: readonly string[], wait: Wait): Promise<void> {
    if (ips.length === 0) return
    await this.#device.unbind(ips, wait)
    const listed = ips.filter((ip) => this.#listed.delete(ip))
    await this.#ipsets.deleteMembers(this.#memberIds(listed), wait)
  }

  #memberIds(ips: readonly string[]): readonly string[] {
    return ips.map((ip) => memberEntry(this.#set, ip).id)
  }
}
