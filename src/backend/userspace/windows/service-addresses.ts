// Adds the addresses of services to an interface with netsh, and removes those that this proxy, or one before it, has added.

import { networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { ProxyError } from '../../../lib/errors.ts'
import { type Family, familyOf } from '../../../lib/ip.ts'
import type { Logger } from '../../../lib/log.ts'
import { Mutex } from '../../../lib/mutex.ts'
import { findStateFolder } from '../../../sys/platform/named-pipes.ts'
import {
  type ListInterfaces,
  listPlacedAddresses,
  nameServiceInterface,
} from '../../../sys/platform/service-interface.ts'
import { type Output, type RunOptions, runProgram } from '../../../sys/process/exec.ts'
import { AddressRecord } from './address-record.ts'
import { addArguments, deleteArguments } from './windows-plan.ts'

/** The parts of Windows that this mode uses. Tests replace them. */
export interface WindowsMachine {
  readonly run: (program: string, args: readonly string[], options?: RunOptions) => Promise<Output>
  readonly interfaces: ListInterfaces
  readonly environment: Readonly<Record<string, string | undefined>>
  /** The file that remembers which addresses were added. */
  readonly recordFile: string
}

export const thisMachine: WindowsMachine = {
  run: runProgram,
  interfaces: networkInterfaces,
  environment: process.env,
  recordFile: join(findStateFolder(), 'service-addresses'),
}

export class InterfaceAddresses {
  /** The name of the interface that gets addresses. */
  readonly name: string
  readonly #machine: WindowsMachine
  readonly #record: AddressRecord
  readonly #log: Logger
  /** Both families change addresses; netsh runs one at a time. */
  readonly #turn = new Mutex()

  constructor(machine: WindowsMachine, log: Logger) {
    this.name = nameServiceInterface(machine.environment)
    this.#machine = machine
    this.#log = log
    this.#record = new AddressRecord(machine.recordFile, log)
  }

  /** Lists the addresses that a proxy has added and that are there now. */
  listAdded(family?: Family): readonly { readonly ip: string; readonly interface: string }[] {
    const present = new Set(this.#listPresent().map((one) => `${one.ip} ${one.interface}`))
    return this.#record.entries().flatMap(([ip, name]) => {
      const isWanted = family === undefined || familyOf(ip) === family
      return isWanted && present.has(`${ip} ${name}`) ? [{ ip, interface: name }] : []
    })
  }

  /** Resolves when netsh has added the address, or at once if the machine has it. Throws a ProxyError. */
  async add(ip: string, family: Family, signal: AbortSignal): Promise<void> {
    const found = this.#listPresent().find((one) => one.ip === ip)
    if (found !== undefined) {
      // A host address on our interface was left by a proxy whose record is lost; any other belongs to the machine.
      if (found.interface === this.name && found.isHostAddress) this.#record.add(ip, this.name)
      return
    }
    this.#record.add(ip, this.name)
    const { code, stdout } = await this.#runNetsh(addArguments(this.name, ip, family), signal)
    if (code !== 0) {
      this.#record.delete(ip)
      throw new ProxyError('netsh', `netsh cannot add ${ip} to "${this.name}": ${stdout}`, { fields: { ip } })
    }
    this.#log.v(1, 'Added a service address', { ip, interface: this.name })
  }

  /** Leaves addresses alone that no proxy has added. Throws a ProxyError if the address stays. */
  async remove(ip: string, family: Family): Promise<void> {
    const name = this.#record.entries().find(([added]) => added === ip)?.[1]
    if (name === undefined) return
    const { code, stdout } = await this.#runNetsh(deleteArguments(name, ip, family))
    // netsh also fails if someone else has removed the address.
    if (code !== 0 && this.has(ip)) {
      throw new ProxyError('netsh', `netsh cannot delete ${ip} from "${name}": ${stdout}`, { fields: { ip } })
    }
    this.#record.delete(ip)
    this.#log.v(1, 'Removed a service address', { ip, interface: name })
  }

  /** True if any interface has the address. */
  has(ip: string): boolean {
    return this.#listPresent().some((one) => one.ip === ip)
  }

  /** True if the record names an address of the family that its interface does not have. */
  isAnyMissing(family: Family): boolean {
    const recorded = this.#record.entries().filter(([ip]) => familyOf(ip) === family)
    return recorded.length > this.listAdded(family).length
  }

  /** Forgets addresses that are not there, and removes the record if it is empty. */
  forgetMissing(): void {
    const added = new Set(this.listAdded().map(({ ip }) => ip))
    for (const [ip] of this.#record.entries()) if (!added.has(ip)) this.#record.delete(ip)
    this.#record.close()
  }

  #listPresent() {
    return listPlacedAddresses(this.#machine.interfaces)
  }

  /** netsh prints its errors to stdout and exits with 1. */
  #runNetsh(
    args: readonly string[],
    signal?: AbortSignal,
  ): Promise<{ readonly code: number; readonly stdout: string }> {
    return this.#turn.run(async () => {
      const options = { accept: [0, 1], ...(signal === undefined ? {} : { signal }) }
      const { code, stdout } = await this.#machine.run('netsh', args, options)
      return { code, stdout: stdout.trim().replaceAll(/\s+/g, ' ') }
    })
  }
}
