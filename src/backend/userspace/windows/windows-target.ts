// The target of userspace mode on Windows: addresses first, then the sockets on them.

import { hasErrno, ProxyError } from '../../../lib/errors.ts'
import { sleep } from '../../../lib/time.ts'
import type { Applied, Changes, Held, KernelCheck, OpenContext, RefusedEntry, Target } from '../../backend.ts'
import type { DialReports } from '../../relay/dial-reports.ts'
import type { FlowReports } from '../../relay/flow-reports.ts'
import type { DescriptorBudget } from '../../relay/relay.ts'
import type { DirectEntry } from '../direct/direct-plan.ts'
import { checkSockets, DirectTarget } from '../direct/direct-target.ts'
import { toListenError } from '../relay-listeners.ts'
import type { InterfaceAddresses } from './service-addresses.ts'
import { type AddedAddressEntry, makeAddressEntry, type WindowsEntry } from './windows-plan.ts'

export interface WindowsTargetOptions {
  readonly context: OpenContext
  readonly addresses: InterfaceAddresses
  readonly udpIdleMs: number
  readonly budget: DescriptorBudget
  readonly dials?: DialReports
  readonly flows?: FlowReports
}

/** Windows looks for duplicates of a new address in the network before a process can listen on it. */
const settleLimitMs = 10_000
const retryMs = 100

export class WindowsTarget implements Target<WindowsEntry> {
  readonly #options: WindowsTargetOptions
  readonly #sockets: DirectTarget
  /** When each address was added by this process, by the monotonic clock. */
  readonly #addedAt = new Map<string, number>()

  constructor(options: WindowsTargetOptions) {
    this.#options = options
    const { context, udpIdleMs, budget, dials, flows } = options
    const retryListen = (host: string, error: unknown, signal: AbortSignal) => this.#waitForAddress(host, error, signal)
    this.#sockets = new DirectTarget({
      context,
      udpIdleMs,
      budget,
      retryListen,
      ...(dials === undefined ? {} : { dials }),
      ...(flows === undefined ? {} : { flows }),
    })
  }

  /** Addresses of an earlier process are held, too: those that no service wants are then dropped. */
  async observe(): Promise<readonly Held[]> {
    const { addresses, context } = this.#options
    const held = addresses.listAdded(context.family).map(({ ip }) => makeAddressEntry(ip))
    return [...held, ...(await this.#sockets.observe())]
  }

  async apply({ put, drop }: Changes<WindowsEntry>, signal: AbortSignal): Promise<Applied> {
    const isAddress = ({ kind }: Held) => kind === 'address'
    await this.#sockets.apply({ put: [], drop: drop.filter((held) => !isAddress(held)) }, signal)
    const failed = await this.#remove(drop.filter(isAddress))
    const refused: RefusedEntry[] = []
    for (const entry of put) if (entry.kind === 'address') await this.#add(entry, refused, signal)
    const missing = new Set(refused.map(({ id }) => id))
    // A socket on an address that could not be added would only wait in vain.
    const sockets = put.filter((entry): entry is DirectEntry => entry.kind === 'socket')
    const possible = sockets.filter(({ socket }) => !missing.has(makeAddressEntry(socket.host).id))
    const applied = await this.#sockets.apply({ put: possible, drop: [] }, signal)
    if (failed.length > 0) throw new ProxyError('netsh', failed.join('; '))
    const without = sockets.filter((entry) => !possible.includes(entry))
    refused.push(...without.map(({ id, socket }) => ({ id, error: makeMissingError(socket.host) })))
    return { ...applied, refused: [...refused, ...applied.refused] }
  }

  /** True if someone else has removed an address. */
  drifted(): boolean {
    const { addresses, context } = this.#options
    return addresses.isAnyMissing(context.family)
  }

  close(): Promise<void> {
    return this.#sockets.close()
  }

  async check(): Promise<KernelCheck> {
    const { addresses } = this.#options
    const sockets = await checkSockets(this.#sockets)
    return {
      presence: (part) => {
        if (part.kind !== 'address') return sockets.presence(part)
        return addresses.has(part.digest) ? 'present' : 'missing'
      },
    }
  }

  /** Returns what could not be removed. */
  async #remove(held: readonly Held[]): Promise<readonly string[]> {
    const { addresses, context } = this.#options
    const failed: string[] = []
    for (const { digest: ip } of held) {
      try {
        await addresses.remove(ip, context.family)
        this.#addedAt.delete(ip)
      } catch (error) {
        if (!(error instanceof ProxyError)) throw error
        failed.push(error.message)
      }
    }
    return failed
  }

  async #add({ id, ip }: AddedAddressEntry, refused: RefusedEntry[], signal: AbortSignal): Promise<void> {
    const { addresses, context } = this.#options
    try {
      await addresses.add(ip, context.family, signal)
      this.#addedAt.set(ip, context.clock.monotonic())
    } catch (error) {
      signal.throwIfAborted()
      refused.push({ id, error: toListenError(error) })
    }
  }

  /** Resolves true, after a pause, if the address was added so recently that Windows may not be ready for it. */
  async #waitForAddress(host: string, error: unknown, signal: AbortSignal): Promise<boolean> {
    const { clock } = this.#options.context
    const addedAt = this.#addedAt.get(host)
    const cause = error instanceof ProxyError ? error.cause : error
    if (addedAt === undefined || !hasErrno(cause, 'EADDRNOTAVAIL')) return false
    if (clock.monotonic() - addedAt > settleLimitMs) return false
    await sleep(clock, retryMs, signal)
    return true
  }
}

const makeMissingError = (ip: string): ProxyError => new ProxyError('netsh', `the address ${ip} could not be added`)
